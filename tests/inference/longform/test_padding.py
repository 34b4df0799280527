"""Merged padding and pauses are exact for a Whisper whose rows of silence are all equal."""

from functools import cache

import numpy as np
import pytest
import torch
from cases import cases
from decoded_segments import assert_same, decode_samples
from openai_whisper import ctc_whisper, noise_and_silence
from tiny_whisper import read_whisper_experiment

from espnet_medusa.data.audio.voice_activity import STEP_S, SpeechActivity
from espnet_medusa.data.encoder_rows import row_counts
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks import whisper_encoder
from espnet_medusa.networks.masks import inside

SPEECHES = [noise_and_silence(s, seed) for seed, s in enumerate((0.3, 7.0, 29.9, 33.0, 3.0))]
RATE_HZ = 16000
PAUSES_S = [(2.0, 5.0)], [(0.0, 3.0), (5.0, 28.0), (28.3, 29.2)]


@pytest.fixture(scope="module")
def both_paddings(tmp_path_factory):
    """Return a function from options to a Whisper without positions, with either padding."""
    experiment = ctc_whisper(tmp_path_factory.mktemp("whisper"), ctc_units=512)
    table = torch.load(experiment.model, weights_only=True)
    table["encoder.whisper.embed_positions.weight"].zero_()
    torch.save(table, experiment.model)
    trained = read_whisper_experiment(experiment)

    @cache
    def opened(**options) -> list[Speech2Text]:
        given = {"trained": trained, "search": "greedy", "ctc_weight": 0.0} | options
        if options.get("drafter") == "model":
            given["draft_model"] = str(experiment.folder)  # the Whisper itself
        return [Speech2Text(**given, encoder_padding=padding) for padding in ("full", "merged")]

    return opened


def test_the_rows_of_the_padding_are_equal(both_paddings, no_gradients):
    (rows, lengths), (fewer, frames) = (
        one.model.encode(one.model.batch(SPEECHES[:3])) for one in both_paddings()
    )
    assert lengths.tolist() == frames.sum(dim=1).tolist() == [1500] * 3
    sizes = (frames > 0).sum(dim=1).tolist()
    assert sizes[0] < 250 and sizes[2] == 1500
    for row, count in enumerate(sizes):
        repeated = fewer[row, :count].repeat_interleave(frames[row, :count], dim=0)
        torch.testing.assert_close(repeated, rows[row], rtol=0.0, atol=1e-4)


def test_encoder_output_in_parts_is_that_of_a_batch(both_paddings, no_gradients):
    for one in both_paddings():
        expected, frames = one.model.encode(one.model.batch(SPEECHES[:3]))
        found, frames_of_parts = one.model.encode(one.model.batch(SPEECHES[:3], together=1))
        assert torch.equal(frames_of_parts, frames)
        used = inside(expected, row_counts(frames))
        torch.testing.assert_close(found[used], expected[used], rtol=0.0, atol=1e-4)
        together = one.decode(SPEECHES[:3], together=2)
        assert [row.results[0][2] for row in together] == [
            row.results[0][2] for row in one.decode(SPEECHES[:3])
        ]


def decode_with_both(models, samples, options, batch_size=1):
    """Compare the recordings decoded with both paddings; return those with merged padding."""
    full, merged = (decode_samples(one, samples, options, batch_size) for one in models)
    for found, expected in zip(merged, full, strict=True):
        assert found.language == expected.language
        assert_same(found.segments, expected.segments)
        counts, wanted = found.statistics, expected.statistics
        assert (counts.decoder_calls, counts.drafted) == (wanted.decoder_calls, wanted.drafted)
    return merged


@cases(
    ({}, {"word_timestamps": True}),
    ({"search": "beam", "beam_size": 3, "ctc_weight": 0.0}, {"compression_ratio_threshold": 1.2}),
    ({"language": "detect"}, {"condition_on_previous_text": False}),
    ({}, {"without_timestamps": True}),
    ids=str,
)
def test_segments_words_and_languages_are_the_same(search, options, both_paddings):
    options = LongFormOptions(temperature_increment_on_fallback=1.0, **options)
    found = decode_with_both(both_paddings(**search), SPEECHES, options, 3)
    assert any(recording.segments for recording in found)


@pytest.mark.parametrize("drafter", ["ctc", "model"])
def test_drafts_are_the_same(both_paddings, drafter):
    results = []
    for speech2text in both_paddings(draft_depth=3, drafter=drafter):
        found = speech2text.decode([SPEECHES[1], SPEECHES[4]])
        results.append([(one.results[0][2], one.statistics.decoder_calls) for one in found])
    assert results[0] == results[1]


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
def test_merged_pauses_are_exact(search, options, rows, both_paddings, monkeypatch):
    monkeypatch.setattr(SpeechActivity, "of", activity)
    window_rows, sizes = whisper_encoder.window_rows, []

    def counted(*arguments):
        rows, lengths = window_rows(*arguments)
        sizes.extend([row_counts(lengths)[0].item()] if lengths.dim() == 2 else [])
        return rows, lengths

    monkeypatch.setattr(whisper_encoder, "window_rows", counted)
    ways = {"skip_silence": True, "temperature_increment_on_fallback": None}
    samples, options = [with_pauses(row) for row in rows], LongFormOptions(**options, **ways)
    for found in decode_with_both(both_paddings(**search), samples, options):
        assert found.segments and (found.statistics.drafted or not search)
    assert min(sizes) < 350, "6 s, of which 3 s are a pause, or 30 s with 24 s of pauses"
