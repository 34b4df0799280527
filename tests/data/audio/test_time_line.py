"""Times are those of a player: sound that begins late, gaps, and odd timestamps."""

import numpy as np
import pytest
from cases import cases
from media_files import assert_unreadable, cut, speechlike, write_media
from refusals import allocates_less_than
from timed_media import write_timed

from espnet_medusa.data.audio.reader import probe_audio, read_audio
from espnet_medusa.data.audio.reading import AudioReading
from espnet_medusa.data.audio.time_line import TimeLine

PLAIN = AudioReading(player_times=False)
WRAP_S = (1 << 33) / 90000  # timestamps of transport streams have 33 bits


def placed_at(path, sound, at_s, rate_hz=48000):
    """Check that a file is silent before ``at_s``, and has the sound there."""
    samples, read_hz = read_audio(str(path))
    assert read_hz == rate_hz
    start = round((at_s + 0.5) * rate_hz)
    inner = sound[round(0.5 * rate_hz) : round(1.5 * rate_hz)]
    margin = round(0.12 * rate_hz)
    near = samples[start - margin : start + len(inner) + margin]
    found = np.correlate(near, inner, mode="valid")
    delay = int(np.argmax(found)) - margin
    assert abs(delay) / rate_hz < 0.11
    matched = near[delay + margin :][: len(inner)]
    assert np.corrcoef(inner, matched)[0, 1] > 0.9
    before = samples[: max(0, round((at_s - 0.15) * rate_hz))]
    assert np.abs(before).max(initial=0.0) < 1e-3
    return samples


@cases(
    ("a.mp4", "aac", "mpeg4"), ("a.mov", "pcm_s16le", "mpeg4"), ("a.mkv", "libopus", "mpeg4"),
    ("a.ts", "aac", "mpeg2video"), ("a.flv", "aac", "flv1"), ("a.nut", "libopus", "mpeg4"),
    ("a.mpg", "mp2", "mpeg2video"),
)  # fmt: skip
def test_sound_that_begins_after_the_video(name, codec, video, tmp_path):
    path, rate_hz = tmp_path / name, 44100 if name == "a.flv" else 48000
    sound = write_timed(path, codec, rate_hz, start_s=4.9, video=(video, 0.0, 8.0))
    samples = placed_at(path, sound, 4.9, rate_hz)
    assert probe_audio(str(path)).duration_s > 6.7
    plain, _ = read_audio(str(path), reading=PLAIN)
    assert len(plain) / rate_hz == pytest.approx(2.0, abs=0.1)
    np.testing.assert_array_equal(plain[-rate_hz:], samples[-rate_hz:])
    part, _ = read_audio(str(path), start_s=5.5, end_s=6.5)
    np.testing.assert_array_equal(part, samples[round(5.5 * rate_hz) : round(6.5 * rate_hz)])


@cases(("late.ts", "aac"), ("late.mpg", "mp2"))
def test_sound_that_begins_after_the_part_that_ffmpeg_searches(name, codec, tmp_path):
    sound = write_timed(tmp_path / name, codec, start_s=15, video=("mpeg2video", 0.0, 18.0))
    placed_at(tmp_path / name, sound, 15)


@cases(("a.mka", "libopus"), ("a.m4a", "aac"), ("a.ts", "aac"), ("a.ogg", "libopus"))
def test_gaps_are_filled_with_silence(name, codec, tmp_path):
    path = tmp_path / name
    sound = write_timed(path, codec, seconds=4.0, gaps=[(1.0, 3.0), (2.0, 0.25)])
    samples, rate_hz = read_audio(str(path))
    assert len(samples) / rate_hz == pytest.approx(7.25, abs=0.1)
    assert np.abs(samples[round(1.2 * rate_hz) : round(3.8 * rate_hz)]).max() == 0
    end = samples[round(6.0 * rate_hz) : round(7.0 * rate_hz)]
    expected = sound[round(2.75 * rate_hz) : round(3.75 * rate_hz)]
    shifts = np.correlate(end, expected[4800:-4800], mode="valid")
    assert abs(int(np.argmax(shifts)) - 4800) / rate_hz < 0.08
    plain, _ = read_audio(str(path), reading=PLAIN)
    assert len(plain) / rate_hz == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize("start_s", [1.0, 3600.0])
@cases(
    ("a.mka", "libopus"), ("a.webm", "libopus"), ("a.nut", "libopus"), ("a.ogg", "libopus"),
    ("a.ts", "aac"), ("a.m4a", "aac"), ("a.flv", "aac"),
)  # fmt: skip
def test_times_that_start_late_are_complete_and_begin_at_0(name, codec, tmp_path, start_s):
    path, rate_hz = tmp_path / name, 44100 if name == "a.flv" else 48000
    sound = write_timed(path, codec, rate_hz, seconds=4.0, start_s=start_s)
    samples = placed_at(path, sound, 0.0, rate_hz)
    for seconds in (len(samples) / rate_hz, probe_audio(str(path)).duration_s):
        assert seconds == pytest.approx(4.0, abs=0.1)
    if name in ("a.mka", "a.webm"):
        cut(path, 0.6)
        assert_unreadable(r"is truncated \(2\..* of [34]\..* s\)", path)


@cases((WRAP_S - 1.0, None), (WRAP_S - 2.0, WRAP_S - 3.0), (-0.5, 0.0))
def test_times_that_roll_over_or_are_negative(start_s, video_s, tmp_path):
    video = None if video_s is None else ("mpeg2video", video_s, 5.0)
    sound = write_timed(tmp_path / "a.ts", "aac", seconds=4.0, start_s=start_s, video=video)
    placed_at(tmp_path / "a.ts", sound, max(0.0, start_s - (video_s or start_s)))


def test_edit_list_that_hides_sound_before_0(tmp_path):
    write_timed(tmp_path / "a.m4a", "aac", seconds=4.0, start_s=-1.0)
    sound = speechlike(4.0, 48000)
    placed_at(tmp_path / "a.m4a", sound[48000:], 0.0)


def test_frames_of_any_size(tmp_path):
    lengths = (960, 17, 4000, 240, 1)
    sound = write_timed(tmp_path / "a.mkv", "pcm_s16le", start_s=2.0, frame_samples=lengths)
    samples, rate_hz = read_audio(str(tmp_path / "a.mkv"))
    np.testing.assert_allclose(samples, sound, atol=1e-4)


@pytest.mark.parametrize("starts", [(0.0, 5000.0), (5000.0, 0.0), (7.0, 7.0)])
def test_joined_transport_streams_have_no_gap(tmp_path, starts):
    data = b""
    for start_s in starts:
        write_timed(tmp_path / "a.ts", "aac", seconds=3.0, start_s=start_s)
        data += (tmp_path / "a.ts").read_bytes()
    (tmp_path / "a.ts").write_bytes(data)
    samples, rate_hz = read_audio(str(tmp_path / "a.ts"))
    assert len(samples) / rate_hz == pytest.approx(6.0, abs=0.1)


def test_silence_is_limited_by_the_size_of_the_file(tmp_path, caplog):
    path = tmp_path / "a.mka"
    write_timed(path, "libopus", gaps=[(1.0, 1e6)])
    with allocates_less_than(20_000_000):
        samples, rate_hz = read_audio(str(path))
    assert len(samples) / rate_hz == pytest.approx(2.0, abs=0.1)
    assert "a.mka: has a gap of 1000000 s in its times, too long for its size" in caplog.text


def test_time_line():
    line = TimeLine(10.0, 1000, 6400, False)
    assert line.silence_before(10.05) == 0, "below the tolerance"
    assert line.silence_before(12.0) == 2000
    line.position = 5000
    assert line.silence_before(14.5) == 0, "an overlap does not drop sound"
    assert line.silence_before(15.3) == 300, "and does not move the times"
    assert line.silence_before(2.0) == 0, "another time line"
    assert line.silence_before(3.0) == 1000
    assert line.silence_before(1003.0) == 0 and line.unfilled_s == 1001


def test_files_of_one_stream_are_unchanged(tmp_path):
    for suffix in (".m4a", ".mka", ".wma"):
        rate_hz = 48000 if suffix == ".mka" else 16000
        write_media(tmp_path / f"a{suffix}", speechlike(3.0, rate_hz), rate_hz)
        samples, _ = read_audio(str(tmp_path / f"a{suffix}"))
        np.testing.assert_array_equal(
            samples, read_audio(str(tmp_path / f"a{suffix}"), reading=PLAIN)[0]
        )
