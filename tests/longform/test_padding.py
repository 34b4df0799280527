"""Merged padding is exact for a Whisper without positions, whose rows of padding are all equal."""

from functools import cache

import pytest
import torch
from cases import cases
from decoded_segments import assert_same, decode_all
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper

from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import LongRecording

SECONDS = 0.3, 7.0, 29.9, 41.0, 3.0
SPEECHES = [noise_and_silence(seconds, row) for row, seconds in enumerate(SECONDS)]


@pytest.fixture(scope="module")
def both_paddings(tmp_path_factory):
    model = openai_whisper(1, end=4.0, text_context=32)
    model.encoder.positional_embedding.zero_()
    path = str(save_openai_whisper(model, tmp_path_factory.mktemp("whisper") / "whisper.pt"))

    @cache
    def opened(**options) -> list[Speech2Text]:
        options = {"search": "greedy", "language": "en"} | options
        return [
            Speech2Text.from_pretrained(path, encoder_padding=padding, **options)
            for padding in ("full", "merged")
        ]

    return opened


@torch.no_grad()
def test_the_rows_of_the_padding_are_equal(both_paddings):
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
    runs, options = [], LongFormOptions(temperature_increment_on_fallback=0.5, **options)
    for speech2text in both_paddings(**search):
        recordings = [LongRecording(row, speech) for row, speech in enumerate(SPEECHES)]
        runs.append(decode_all(speech2text.long_form(options, 3), recordings))
    assert any(recording.segments for recording in runs[0].values())
    for key, expected in runs[0].items():
        assert runs[1][key].language == expected.language
        assert_same(runs[1][key].segments, expected.segments)


def test_drafts_of_a_model_and_of_ctc_are_the_same(without_positions):
    folder, trained = without_positions
    for drafts in ({"drafter": "ctc"}, {"drafter": "model", "draft_model": folder}):
        results = []
        for padding in ("full", "merged"):
            options = {"search": "greedy", "draft_depth": 3, "encoder_padding": padding}
            speech2text = Speech2Text(trained=trained, **options, **drafts)
            found = speech2text.decode([SPEECHES[1], SPEECHES[4]])
            results.append([(one.results[0][2], one.statistics.decoder_calls) for one in found])
        assert results[0] == results[1]
