"""Files that only FFmpeg reads: the written samples, or a one-line error."""

import numpy as np
import pytest
import soundfile
from cases import cases, combinations
from media_files import CODECS, assert_unreadable, cut, speechlike, write_media
from refusals import assert_refused

from espnet_medusa.data.audio.reader import AudioError, probe_audio, read_audio

RATES = {"libopus": 48000, "ac3": 48000}


def make(path, seconds=2.0, channels=1, seed=0, **options):
    rate_hz = RATES.get(CODECS.get(path.suffix), 16000)
    samples = speechlike(seconds, rate_hz, seed)
    if channels == 2:
        samples = np.stack([samples, speechlike(seconds, rate_hz, seed + 1)], axis=1)
    write = write_media if path.suffix in CODECS else soundfile.write
    write(path, samples, rate_hz, **options)
    return samples, rate_hz


def alignment(samples, decoded, rate_hz) -> tuple[float, float]:
    """Correlation of the read with the written samples, and the delay in s, up to 80 ms."""
    most = round(0.08 * rate_hz)
    inner = samples[most : len(samples) - 2 * most]
    delay = int(np.argmax(np.correlate(decoded[: len(inner) + 2 * most], inner, mode="valid")))
    matched = decoded[delay : delay + len(inner)]
    return float(np.corrcoef(inner, matched)[0, 1]), (delay - most) / rate_hz


@combinations(channels=[1, 2], suffix=CODECS)
def test_samples_equal_the_written_ones(tmp_path, suffix, channels):
    path = tmp_path / f"talk{suffix}"
    samples, rate_hz = make(path, 2.0, channels)
    with pytest.raises(soundfile.SoundFileError):
        soundfile.info(path)
    decoded, read_hz = read_audio(str(path))
    assert (read_hz, decoded.dtype, decoded.ndim) == (rate_hz, np.float32, 1)
    assert len(decoded) / rate_hz == pytest.approx(2.0, abs=0.13)
    mono = samples if channels == 1 else samples.mean(axis=1)
    correlation, delay_s = alignment(mono, decoded, rate_hz)
    # The encoder's delay, if the container does not contain it.
    assert correlation > 0.95 and abs(delay_s) <= 0.07
    if suffix == ".mov":  # lossless
        np.testing.assert_allclose(decoded, mono, atol=1e-4)
    info = probe_audio(str(path))
    assert (info.rate_hz, info.n_channels) == (rate_hz, channels)
    if suffix == ".aac":
        assert info.duration_s is None, "its header has no duration"
    else:
        assert info.duration_s == pytest.approx(len(decoded) / rate_hz, abs=0.1)


@cases(("cinema.m4a", 8, 0.0), ("talk.mp4", 1, 3.0))
def test_the_sound_of_cinemas_and_videos(name, channels, video_s, tmp_path):
    samples = np.stack([speechlike(1.5, seed=seed) for seed in range(channels)], axis=1)
    path = write_media(tmp_path / name, samples if channels > 1 else samples[:, 0], video_s=video_s)
    assert probe_audio(str(path)).n_channels == channels
    decoded, rate_hz = read_audio(str(path))
    correlation, _ = alignment(samples.mean(axis=1), decoded, rate_hz)
    assert correlation > 0.9 and len(decoded) / rate_hz == pytest.approx(1.5, abs=0.13)
    path, message = tmp_path / "mute.mp4", "mute.mp4: has no audio that FFmpeg decodes; give a file"
    write_media(path, None, video_s=1.0)
    assert_refused(message, probe_audio, str(path), error=AudioError)


@pytest.mark.parametrize("suffix", [".m4a", ".flac"])
def test_parts_equal_those_of_the_whole(tmp_path, suffix):
    """Kaldi lets a segment end up to half a second late."""
    path = tmp_path / f"talk{suffix}"
    _, rate_hz = make(path, 3.0, 2)
    whole, _ = read_audio(str(path))
    for start_s, end_s in ((0.0, 1.0), (0.73, 2.11), (1.9, None), (2.5, -1), (2.0, 3.3)):
        part, _ = read_audio(str(path), start_s=start_s, end_s=end_s)
        last = None if end_s in (None, -1) else round(end_s * rate_hz)
        np.testing.assert_array_equal(part, whole[round(start_s * rate_hz) : last])
    assert_unreadable("ends at 4.5 s but the recording at 3.00 s", path, end_s=4.5)
    assert_unreadable("outside", path, start_s=3.2, end_s=3.3)
    assert_unreadable("lasts 3.00 s, more than the 2.5 s", path, max_duration_s=2.5)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.8])
@pytest.mark.parametrize(
    ("suffix", "options"),
    [(suffix, {"movflags": "faststart"}) for suffix in (".mp4", ".m4a")]
    + [(suffix, {}) for suffix in (".mp4", ".webm", ".mkv", ".wma", ".flv", ".avi")],
)
def test_truncated_files_are_refused_by_name(tmp_path, suffix, options, part):
    path = tmp_path / f"cut{suffix}"
    make(path, 4.0, **options)
    cut(path, part)
    assert str(path) in assert_unreadable("(truncated|damaged).*; ", path)


@pytest.mark.parametrize("seed", range(40))
def test_random_bytes_are_refused(tmp_path, seed):
    path = tmp_path / "talk.mp4"
    path.write_bytes(np.random.default_rng(seed).bytes(30000))
    assert_unreadable("is no audio that libsndfile or FFmpeg reads", path)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_files_are_refused_or_read_completely(tmp_path, seed):
    """Overwritten bytes never shorten the audio silently."""
    path = tmp_path / "talk.m4a"
    make(path, 4.0, movflags="faststart")
    data, rng = bytearray(path.read_bytes()), np.random.default_rng(seed)
    place = int(rng.integers(len(data) // 4, len(data) - 300))
    data[place : place + 200] = rng.bytes(200)
    path.write_bytes(data)
    try:
        decoded, rate_hz = read_audio(str(path))
    except AudioError as error:
        assert str(path) in str(error)
    else:
        assert len(decoded) / rate_hz == pytest.approx(4.0, abs=0.13)
