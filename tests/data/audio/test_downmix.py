"""Channels that cancel each other when they are averaged."""

import numpy as np
import pytest
import soundfile
from cases import cases
from media_files import speechlike, write_media

from espnet_medusa.data.audio import reader
from espnet_medusa.data.audio.downmix import Downmix
from espnet_medusa.data.audio.reader import read_audio
from espnet_medusa.data.audio.speech_segments import read_levels, segment_levels

VOICE = speechlike(2.05)
NOISE = 1e-3 * speechlike(2.05, seed=7)


def level_db(samples: np.ndarray) -> float:
    return 10 * np.log10(np.mean(samples**2) / np.mean(VOICE**2))


def write(path, gains):
    """Write the voice with a gain in each channel, and a little noise of opposite signs."""
    signs = np.resize([1, -1], len(gains))
    soundfile.write(path, VOICE[:, None] * gains + NOISE[:, None] * signs, 16000, "FLOAT")
    return str(path)


@cases(
    ([1, -1],), ([0.9, -1],), ([0, 1, -1],), ([1, -1, 1, -1],), ([1, -1, 0, 0, 0],),
    ([0.5, 0.5, -1, 0, 0, 0],), ([0, 0, 1, 0, 0, 0, -1],), ([1, -1] * 4,),
)  # fmt: skip
def test_opposite_phases_are_one_channel(gains, tmp_path, monkeypatch, caplog):
    path = write(tmp_path / "a.wav", gains)
    for block_values in (1 << 20, 4000, 999):
        monkeypatch.setattr(reader, "BLOCK_VALUES", block_values)
        samples, rate_hz = read_audio(path)
        assert (len(samples), rate_hz, samples.dtype) == (len(VOICE), 16000, np.float32)
        assert level_db(samples) == pytest.approx(0, abs=1)
        loudest = VOICE * gains[int(np.argmax(np.abs(gains)))]
        assert abs(np.corrcoef(samples, loudest)[0, 1]) > 0.99
    lengths = "its channels cancel each other in 2.05 of 2.05 s; only channel"
    assert caplog.messages[0].startswith(f"{path}: {lengths}")


@pytest.mark.parametrize("channels", range(2, 9))
def test_channels_that_do_not_cancel_are_averaged(channels, tmp_path, caplog):
    for gains in ([1] * channels, [0] * (channels - 1) + [1], [*range(1, channels), -0.5]):
        path = tmp_path / "a.wav"
        values = (VOICE[:, None] * gains / channels).astype(np.float32)
        soundfile.write(path, values, 16000, "FLOAT")
        np.testing.assert_allclose(read_audio(str(path))[0], values.mean(axis=1), atol=1e-6)
    assert caplog.messages == []


def test_only_the_cancelled_part_is_replaced(tmp_path, caplog):
    voice = np.concatenate([VOICE, VOICE])
    values = np.stack([voice, np.concatenate([VOICE, -VOICE])], axis=1)
    path = tmp_path / "a.wav"
    soundfile.write(path, values, 16000, "FLOAT")
    np.testing.assert_allclose(np.abs(read_audio(str(path))[0])[-30000:], np.abs(VOICE)[-30000:])
    np.testing.assert_allclose(read_audio(str(path))[0][:32000], VOICE[:32000], atol=1e-6)
    assert "cancel each other in 2." in caplog.messages[0] and " of 4.10 s" in caplog.messages[0]
    samples, _ = read_audio(str(path), start_s=3.0, end_s=3.5)
    assert level_db(samples) > -6


@pytest.mark.parametrize("columns", [2, 3, 8])
def test_columns_of_wav_scp_that_cancel_each_other(columns, tmp_path, caplog):
    paths = []
    for column in range(columns):
        paths.append(str(tmp_path / f"{column}.wav"))
        sign = {0: 1, 1: -1}.get(column, 0)
        soundfile.write(paths[-1], sign * VOICE, 16000, "FLOAT")
    entry = " ".join(paths)
    np.testing.assert_allclose(np.abs(read_audio(entry)[0]), np.abs(VOICE), atol=1e-6)
    assert caplog.messages[0].startswith(f"{entry}: its channels cancel")


def test_files_of_ffmpeg_that_cancel(tmp_path, caplog):
    path = write_media(tmp_path / "a.mov", np.stack([VOICE, -VOICE], axis=1))
    assert level_db(read_audio(str(path))[0]) == pytest.approx(0, abs=0.5)
    assert "its channels cancel each other" in caplog.messages[0]


def test_blocks_may_differ_in_channels():
    downmix = Downmix(16000)
    for gains in ([1], [1, -1], [1], [0, 1, -1], [1, 1]):
        downmix.add(VOICE[:, None] * np.float32(gains))
    samples = downmix.finish()
    assert len(samples) == 5 * len(VOICE) and downmix.cancelled == 2 * len(VOICE)
    for part in samples.reshape(5, -1):
        np.testing.assert_allclose(np.abs(part), np.abs(VOICE), atol=1e-6)
    assert len(Downmix(16000).finish()) == 0


def test_levels_for_segments(tmp_path):
    path = write(tmp_path / "a.wav", [1, -1])
    alone = write(tmp_path / "b.wav", [1])
    np.testing.assert_allclose(read_levels(path), read_levels(alone), atol=1)


def test_quiet_recordings_have_segments():
    levels = np.full(500, -40.0)
    levels[100:150] = levels[300:400] = -20.0
    expected = segment_levels(levels)
    assert expected and segment_levels(levels - 52) == expected


def test_channels_that_begin_to_cancel_in_a_joined_file(tmp_path, caplog):
    alone = write_media(tmp_path / "a.aac", VOICE).read_bytes()
    joined = tmp_path / "b.aac"
    write_media(joined, np.stack([VOICE, -VOICE], axis=1))
    joined.write_bytes(alone + joined.read_bytes())
    samples, _ = read_audio(str(joined))
    assert len(samples) / 16000 == pytest.approx(4.1, abs=0.3)
    for half in np.array_split(samples, 2):
        assert level_db(half) == pytest.approx(0, abs=2)
    assert "its channels cancel each other" in caplog.messages[0]
