"""Damaged files: what is there is decoded with a warning, or the file is refused."""

import io
import re

import numpy as np
import pytest
import soundfile
from cases import cases, combinations
from media_files import assert_unreadable, speechlike, write_media
from refusals import assert_refused

from espnet_medusa.data.audio.reader import AudioError, read_audio
from espnet_medusa.data.audio.reading import TRANSCRIBING, AudioReading, Damage

SOUND = speechlike(4.0)


def encode(kind: str, subtype: str | None = None, sound=SOUND, rate_hz: int = 16000) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, sound, rate_hz, format=kind, subtype=subtype)
    return stream.getvalue()


def media(tmp_path, suffix: str, rate_hz: int = 48000, seconds: float = 4.0) -> bytes:
    options = {"movflags": "faststart"} if suffix in (".m4a", ".mp4", ".mov") else {}
    sound = speechlike(seconds, rate_hz)
    return write_media(tmp_path / f"made{suffix}", sound, rate_hz, **options).read_bytes()


def overwrite(data: bytes, count: int, part: float = 0.5) -> bytes:
    place = int(part * len(data))
    return data[:place] + np.random.default_rng(3).bytes(count) + data[place + count :]


def insert(data: bytes, count: int) -> bytes:
    half = len(data) // 2
    return data[:half] + np.random.default_rng(4).bytes(count) + data[half:]


def decode(path, caplog) -> tuple[float, str]:
    """Return seconds and warning of a file that is refused otherwise."""
    assert_unreadable("corrupt|truncated", path)
    assert not caplog.messages
    samples, rate_hz = read_audio(str(path), reading=TRANSCRIBING)
    (line,) = caplog.messages
    assert line.startswith(f"{path}: is damaged: ")
    return len(samples) / rate_hz, line


@cases(
    *((kind, None) for kind in ("WAV", "AIFF", "AU", "NIST", "W64", "VOC", "CAF", "RF64", "AVR")),
    ("FLAC", None), ("MP3", None), ("OGG", "VORBIS"), ("OGG", "OPUS"),
)  # fmt: skip
def test_cut_files_of_libsndfile(kind, subtype, tmp_path, caplog):
    data, path = encode(kind, subtype), tmp_path / "cut.bin"
    path.write_bytes(data[: int(0.6 * len(data))])
    seconds, line = decode(path, caplog)
    samples, rate_hz = read_audio(str(path), reading=TRANSCRIBING)
    assert 1.0 < seconds < 2.8
    found = re.search(r"it ends at (\d.\d\d) s, (\d+) ms before its declared end", line)
    assert float(found[1]) == pytest.approx(seconds, abs=0.01)
    if kind != "OGG":  # whose header has no length
        lost_s = sum(map(int, re.findall(r"(\d+) ms", line))) / 1000
        assert seconds + lost_s == pytest.approx(4.0, abs=0.15)
    if kind not in ("OGG", "MP3"):
        np.testing.assert_allclose(samples, SOUND[: len(samples)], atol=1e-3)


@combinations(suffix=[".m4a", ".mp4", ".mov", ".mkv", ".webm", ".wma", ".flv", ".avi", ".mka"])
def test_cut_files_of_ffmpeg(suffix, tmp_path, caplog):
    data = media(tmp_path, suffix, 44100 if suffix == ".flv" else 48000)
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(data[: int(0.6 * len(data))])
    seconds, line = decode(path, caplog)
    assert seconds == pytest.approx(2.4, abs=0.15) and "ms before its declared end" in line


@cases((".m4a", 0.5), (".aac", 0.5), (".m4a", 0.7))
def test_bad_packets_are_left_out_and_times_kept(suffix, part, tmp_path, caplog):
    data, path = media(tmp_path, suffix), tmp_path / f"bad{suffix}"
    whole, rate_hz = read_audio(str(tmp_path / f"made{suffix}"))
    path.write_bytes(overwrite(data, 400, part))
    seconds, line = decode(path, caplog)
    (length, place) = re.search(r"(\d+) ms at (\d\.\d\d) s could not be decoded", line).groups()
    assert int(length) < 200 and float(place) == pytest.approx(4 * part, abs=0.2)
    assert seconds == pytest.approx(4.0, abs=0.1)
    samples, _ = read_audio(str(path), reading=TRANSCRIBING)
    if suffix == ".m4a":  # has times
        same = min(len(samples), len(whole))
        np.testing.assert_allclose(
            samples[same - 30000 : same - 5000], whole[same - 30000 : same - 5000], atol=2e-2
        )


MP3 = encode("MP3")
TAG = b"ID3\4\0\0" + bytes([0, 0, *divmod(1000, 128)]) + bytes(1000)


@cases(
    (MP3 + TAG + MP3, 8.0), (insert(MP3, 4000), 4.0), (MP3[:8000] + bytes(5000) + MP3[13000:], 3.1),
    ids=["two files", "inserted bytes", "zeros"],
)  # fmt: skip
def test_damaged_mp3(content, seconds, tmp_path, caplog):
    (tmp_path / "a.mp3").write_bytes(content)
    read_s, line = decode(tmp_path / "a.mp3", caplog)
    assert read_s == pytest.approx(seconds, abs=0.2) and "ms at" in line


def test_joined_files_of_other_rates_and_channels_are_whole(tmp_path):
    stereo = encode("MP3", None, np.stack([speechlike(2.0, 44100)] * 2, 1), 44100)
    for content, rate_hz in ((MP3 + stereo, 16000), (stereo + MP3, 44100)):
        (tmp_path / "a.mp3").write_bytes(content)
        samples, read_hz = read_audio(str(tmp_path / "a.mp3"))
        assert read_hz == rate_hz and len(samples) / rate_hz == pytest.approx(6.0, abs=0.2)


def test_a_decoder_that_stops_is_reported(tmp_path, caplog):
    other = encode("OGG", None, speechlike(2.0, 48000), 48000)  # FFmpeg: one rate in Vorbis
    (tmp_path / "a.ogg").write_bytes(encode("OGG") + other)
    seconds, line = decode(tmp_path / "a.ogg", caplog)
    assert seconds == pytest.approx(4.0, abs=0.1)
    assert re.search(r"is damaged: nothing after [34]\.\d\d s could be decoded \(.+\)$", line)


def test_damaged_flac(tmp_path, caplog):
    path = tmp_path / "a.flac"
    path.write_bytes(overwrite(encode("FLAC"), 400))
    seconds, _ = decode(path, caplog)
    samples, _ = read_audio(str(path), reading=TRANSCRIBING)
    assert seconds == pytest.approx(4.0, abs=0.3)
    np.testing.assert_allclose(samples[:25000], SOUND[:25000], atol=1e-3)


def test_files_that_are_mostly_lost_are_refused(tmp_path):
    data, rng = bytearray(media(tmp_path, ".m4a")), np.random.default_rng(5)
    start = data.index(b"mdat") + 8
    data[start + 2000 :] = rng.bytes(len(data) - start - 2000)
    (tmp_path / "a.m4a").write_bytes(data)
    for reading in (AudioReading(), TRANSCRIBING):
        assert_unreadable("corrupt or truncated", tmp_path / "a.m4a", reading=reading)


def test_parts_of_damaged_files_and_limits(tmp_path):
    data, path = encode("WAV"), tmp_path / "cut.wav"
    path.write_bytes(data[: int(0.6 * len(data))])
    part, _ = read_audio(str(path), start_s=1.0, end_s=2.0, reading=TRANSCRIBING)
    np.testing.assert_allclose(part, SOUND[16000:32000], atol=1e-4)
    assert_unreadable("2 s that are allowed", path, max_duration_s=2.0, reading=TRANSCRIBING)
    assert_refused("on_bad_audio: 'skip' is not known; allowed", AudioReading, "skip")


def test_description_of_damage():
    damage = Damage()
    for start_s in (1.0, 1.02, 3.0):
        damage.add(start_s, 0.02)
    assert damage.lost_s == pytest.approx(0.06)
    assert damage.describe(5.0, 0.0) == "40 ms at 1.00 s, 20 ms at 3.00 s could not be decoded"
    ends = "it ends at 5.00 s, 1500 ms before its declared end"
    assert Damage().describe(5.0, 1.5) == ends
    assert damage.describe(5.0, 1.5).endswith(f"; {ends}")


def test_files_that_cannot_be_opened_are_still_refused(tmp_path):
    data = write_media(tmp_path / "a.mp4", SOUND).read_bytes()
    (tmp_path / "a.mp4").write_bytes(data[: len(data) // 2])
    with pytest.raises(AudioError, match="is a damaged or truncated MP4 file"):
        read_audio(str(tmp_path / "a.mp4"), reading=TRANSCRIBING)
