"""Merged padding is exact for a Whisper without positions, whose rows of padding are all equal."""

import torch
from cases import cases
from decoded_segments import assert_same, decode_samples
from openai_whisper import noise_and_silence

from espnet_medusa.longform.options import LongFormOptions

SECONDS = 0.3, 7.0, 29.9, 41.0, 3.0
SPEECHES = [noise_and_silence(seconds, row) for row, seconds in enumerate(SECONDS)]


def test_the_rows_of_the_padding_are_equal(both_paddings, no_gradients):
    full, merged = both_paddings()
    (rows, lengths), (fewer, frames) = (
        one.model.encode(one.model.batch(SPEECHES[:3])) for one in (full, merged)
    )
    assert lengths.tolist() == frames.sum(dim=1).tolist() == [1500] * 3
    sizes = (frames > 0).sum(dim=1).tolist()
    assert sizes[0] < 250 and sizes[2] == 1500
    for row, count in enumerate(sizes):
        repeated = fewer[row, :count].repeat_interleave(frames[row, :count], dim=0)
        torch.testing.assert_close(repeated, rows[row], rtol=0.0, atol=1e-4)


@cases(
    ({}, {}),
    ({}, {"word_timestamps": True}),
    ({"search": "beam", "beam_size": 3, "ctc_weight": 0.0}, {"compression_ratio_threshold": 1.2}),
    ({"language": "detect"}, {"condition_on_previous_text": False}),
    ({}, {"without_timestamps": True}),
    ids=str,
)
def test_segments_words_and_languages_are_the_same(search, options, both_paddings):
    options = LongFormOptions(temperature_increment_on_fallback=0.5, **options)
    full, merged = (decode_samples(one, SPEECHES, options, 3) for one in both_paddings(**search))
    assert any(recording.segments for recording in full)
    for found, expected in zip(merged, full, strict=True):
        assert found.language == expected.language
        assert_same(found.segments, expected.segments)


def test_drafts_of_a_model_and_of_ctc_are_the_same(both_paddings, without_positions):
    for drafts in ({"drafter": "ctc"}, {"drafter": "model", "draft_model": without_positions[0]}):
        results = []
        for speech2text in both_paddings(draft_depth=3, **drafts):
            found = speech2text.decode([SPEECHES[1], SPEECHES[4]])
            results.append([(one.results[0][2], one.statistics.decoder_calls) for one in found])
        assert results[0] == results[1]
