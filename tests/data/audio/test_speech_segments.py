"""Cutting at silences: planted pauses, limits, and audio that cannot be read."""

import numpy as np
import pytest
import soundfile
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_refused

from espnet_medusa.data.audio import speech_segments
from espnet_medusa.data.audio.source import AudioError
from espnet_medusa.data.audio.speech_segments import CONTRAST_DB, read_levels, segment_levels

RATE_HZ = 16000
FRAME_S = 0.02


def levels_of(*sounds: tuple[float, float], duration_s: float = 60.0) -> np.ndarray:
    """Frames of -60 dB, and of -20 dB where sounds are."""
    levels = np.full(round(duration_s / FRAME_S), -60.0)
    for start_s, end_s in sounds:
        levels[round(start_s / FRAME_S) : round(end_s / FRAME_S)] = -20.0
    return levels


QUIETEST = levels_of((0, 55))
QUIETEST[round(22 / FRAME_S)] = -30.0  # Too short to be a pause.
QUIETEST[round(10 / FRAME_S)] = -35.0  # Quieter, but the first part would be too short.
LONG = levels_of((0, 20), (20.5, 35), (36, 55))


@cases(
    (levels_of((1, 3), (3.2, 5), (6, 9), (14, 17)), 30, [(0.86, 9.14), (13.86, 17.14)]),
    (LONG, 30, [(0.0, 20.14), (20.36, 35.14), (35.86, 55.14)]),
    (LONG, 60, [(0.0, 55.14)]),
    (QUIETEST, 30, [(0.0, 22.02), (22.02, 37.04), (37.04, 55.14)]),
    (levels_of((5, 5.04), (20, 30)), 30, [(19.86, 30.14)]),
    (np.zeros(0), 30, []),
    (np.full(500, -40.0), 30, [(0.0, 10.0)]),
    (np.full(500, -90.0), 30, []),
    ids=["pauses", "long", "longer allowed", "no pause", "click", "empty", "hum", "silence"],
)
def test_segments_of_levels(levels, longest_s, segments):
    assert segment_levels(levels, longest_s) == segments


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.02, 50), st.floats(0.02, 4)), max_size=12))
def test_segments_are_ordered_bounded_and_hold_all_sound(pairs):
    sounds, now = [], 0.0
    for sound_s, pause_s in pairs:
        sounds.append((now, now + sound_s))
        now += sound_s + pause_s
    levels = levels_of(*sounds, duration_s=now + 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speech_segments, "MIN_SEGMENT_S", 0.04)
        segments = segment_levels(levels)
    edges = [time_s for segment in segments for time_s in segment]
    assert edges == sorted(edges)
    assert all(0 < end - start <= 30 + 1e-6 for start, end in segments)
    covered = levels_of(*segments, duration_s=now + 5) > -60
    quiet, loud = np.percentile(levels, [5, 95])
    if loud - quiet >= CONTRAST_DB:
        assert covered[levels > -60].all()


def test_levels_are_those_of_the_samples(tmp_path):
    # More than one block, and a last frame that is not full.
    samples = 0.1 * np.random.default_rng(0).standard_normal((RATE_HZ * 45 + 100, 2))
    samples[RATE_HZ : 2 * RATE_HZ] = 0
    path = tmp_path / "a.wav"
    soundfile.write(path, samples, RATE_HZ, subtype="FLOAT")
    levels = read_levels(path)
    assert len(levels) == 45 * 50 + 1
    assert np.all(levels[50:100] == -96)
    mono = samples.mean(axis=1)
    for frame in (0, 999, 1000, 2249):
        power = np.mean(mono[frame * 320 : (frame + 1) * 320] ** 2)
        assert levels[frame] == pytest.approx(10 * np.log10(power), abs=1e-3)
    np.testing.assert_array_equal(read_levels(path, start_s=20, end_s=30), levels[1000:1500])


def test_unreadable_audio_and_options_that_clash_are_refused(tmp_path):
    path = tmp_path / "a.ogg"
    path.write_bytes(b"OggS and nothing that makes sense" * 20)
    assert_refused("a.ogg: cannot be read to its end", read_levels, path, error=AudioError)
    assert_refused("max_segment_s: 0.3; allowed: above 0.5", segment_levels, np.zeros(9), 0.3)
