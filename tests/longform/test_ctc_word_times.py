"""Words from the places of their units, and those that have none."""

import numpy as np
import pytest

from espnet_medusa.longform.ctc_word_times import time_words_by_units
from espnet_medusa.longform.fallback import WindowDecoding
from espnet_medusa.longform.forced_alignment import UnitSpans
from espnet_medusa.longform.history import History
from espnet_medusa.longform.moving_window import MovingWindow
from espnet_medusa.longform.options import WORD_TIMES, LongFormOptions
from espnet_medusa.longform.window import Clock, Window
from espnet_medusa.longform.word_times import TimedWord
from espnet_medusa.whisper.tokens import make_tokenizer, read_whisper_tokens
from espnet_medusa.whisper.transcript import TranscriptText


def timed(sizes, spans, frames_per_s=10, duration_s=4.0):
    """Times of words of such sizes, whose tokens are as many as their place."""
    words = [(f" w{place}", [0] * (1 + place)) for place in range(len(sizes))]
    starts, ends, probabilities = np.array(spans, dtype=float).reshape(-1, 3).T
    found = time_words_by_units(
        words, sizes, UnitSpans(starts, ends, probabilities), frames_per_s, duration_s
    )
    assert [(word.text, word.tokens) for word in found] == [
        (text, len(tokens)) for text, tokens in words
    ]
    return [(word.start_s, word.end_s, word.probability) for word in found]


def test_a_word_lasts_from_its_first_unit_to_its_last():
    spans = [(2, 3, 0.5), (5, 7, 1.0), (7, 8, 0.25), (20, 24, 0.75)]
    assert timed([2, 1, 1], spans) == [(0.2, 0.7, 0.75), (0.7, 0.8, 0.25), (2.0, 2.4, 0.75)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 0, 1], [(1.0, 2.0)]),
        ([0, 1, 1], [(0.0, 0.5)]),
        ([1, 1, 0], [(3.0, 4.0)]),
        ([1, 0, 0, 1], [(1.0, 1.5), (1.5, 2.0)]),
        ([0, 0, 1, 1, 0, 0], [(0.0, 0.25), (0.25, 0.5), (3.0, 3.5), (3.5, 4.0)]),
    ],
)
def test_a_word_without_units_is_between_its_neighbours(sizes, expected):
    found = timed(sizes, [(5, 10, 0.5), (20, 30, 0.5)])
    assert [one[:2] for one, size in zip(found, sizes, strict=True) if size] == [
        (0.5, 1.0), (2.0, 3.0)
    ]  # fmt: skip
    without = [one for one, size in zip(found, sizes, strict=True) if not size]
    assert [one[:2] for one in without] == expected
    assert {probability for *_, probability in without} == {0.0}


def test_words_that_all_have_none_share_the_window():
    found = timed([0, 0], [])
    assert found == [(0.0, 2.0, 0.0), (2.0, 4.0, 0.0)] and timed([], []) == []


TOKENIZER = make_tokenizer(51865)
TEXT = TranscriptText(TOKENIZER, read_whisper_tokens(TOKENIZER))


@pytest.mark.parametrize("source", WORD_TIMES)
def test_words_by_ctc_are_as_long_as_they_are(source):
    """A long one behind a sentence, and one behind a pause; by attention they hold the pause."""
    times = [(2.0, 2.1), (2.2, 2.3), (2.3, 2.34), (3.0, 4.0), (4.1, 4.2)]
    texts = [" It", " is", ".", " Extraordinary", " indeed"]
    tokens = [TOKENIZER.encode(text, add_special_tokens=False) for text in texts]
    words = [
        TimedWord(text, len(own), *place, 0.5)
        for text, own, place in zip(texts, tokens, times, strict=True)
    ]
    first_time = TEXT.tokens.first_time
    options = LongFormOptions(word_timestamps=True, word_times=source)
    written = (first_time, *(one for own in tokens for one in own), first_time + 250)
    clock, history = Clock(first_time, 2), History((), 100, False)
    moving = MovingWindow(3000, 3000, clock, TEXT, options, history)
    decoding = WindowDecoding(written, "".join(texts), 0.0, 0.0, 0.0)
    (found,) = moving.take(Window(0, 3000), decoding, lambda tokens: words)
    assert [word.text for word in found.words] == [" It", " is.", *texts[3:]]
    places = [(word.start_s, word.end_s) for word in found.words]
    assert (places == [*times[:2], *times[3:]]) == (source == "ctc")
    assert (found.start_s, found.end_s) == (places[0][0], places[-1][1])
