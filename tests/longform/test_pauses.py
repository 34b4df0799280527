"""Merged pauses are exact for a Whisper without positions, whose rows of silence are all equal."""

import numpy as np
import pytest
from cases import cases
from decoded_segments import assert_same, decode_samples
from openai_whisper import noise_and_silence

from espnet_medusa.audio.voice_activity import STEP_S, SpeechActivity
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.model import whisper_encoder
from espnet_medusa.tree.encoder_rows import row_counts

RATE_HZ = 16000
PAUSES_S = [(2.0, 5.0)], [(0.0, 3.0), (5.0, 28.0), (28.3, 29.2)]


def with_pauses(row: int) -> np.ndarray:
    samples = noise_and_silence((6.0, 32.0)[row], 3 + row) + np.float32(0.001)
    for start_s, end_s in PAUSES_S[row]:
        samples[int(RATE_HZ * start_s) : int(RATE_HZ * end_s)] = 0.0
    return samples


def activity(samples: np.ndarray) -> SpeechActivity:
    size = int(RATE_HZ * STEP_S)
    frames = np.pad(samples, (0, -len(samples) % size)).reshape(-1, size)
    return SpeechActivity((frames != 0).any(axis=1).astype(np.float32), len(samples))


def test_long_pauses_of_a_span():
    speech = activity(with_pauses(1))
    (first, second) = speech.pauses(1.8, 30.0)
    assert first == pytest.approx((0.25, 0.95), abs=2 * STEP_S)
    assert second == pytest.approx((3.45, 25.95), abs=2 * STEP_S)
    assert not speech.pauses(27.2, 30.0), "the last pause is short, and the one before it as well"


@cases(
    ({}, {"word_timestamps": True}, [0, 1]),
    ({"drafter": "ctc", "draft_depth": 3}, {"word_timestamps": True, "word_times": "ctc"}, [1]),
)
def test_segments_and_words_are_the_same(search, options, rows, both_paddings, monkeypatch):
    monkeypatch.setattr(SpeechActivity, "of", activity)
    window_rows, sizes = whisper_encoder.window_rows, []

    def counted(*arguments):
        rows, lengths = window_rows(*arguments)
        sizes.extend([row_counts(lengths)[0].item()] if lengths.dim() == 2 else [])
        return rows, lengths

    monkeypatch.setattr(whisper_encoder, "window_rows", counted)
    ways = {"skip_silence": True, "temperature_increment_on_fallback": None}
    samples, options = [with_pauses(row) for row in rows], LongFormOptions(**options, **ways)
    full, merged = (decode_samples(one, samples, options) for one in both_paddings(**search))
    assert min(sizes) < 350, "6 s, of which 3 s are a pause, or 30 s with 24 s of pauses"
    for expected, found in zip(full, merged, strict=True):
        assert expected.segments
        assert_same(found.segments, expected.segments)
        counts, wanted = found.statistics, expected.statistics
        assert (counts.decoder_calls, counts.drafted) == (wanted.decoder_calls, wanted.drafted)
        assert counts.drafted or not search
