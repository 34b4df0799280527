"""Word times by CTC against all paths; by attention, and words, against openai-whisper's."""

import itertools
import random

import numpy as np
import pytest
import torch
from cases import cases, combinations
from whisper import timing
from whisper.tokenizer import get_tokenizer

from espnet_medusa.inference.longform.ctc_word_times import (
    UnitSpans,
    align_units,
    time_words_by_units,
)
from espnet_medusa.inference.longform.long_form_options import WORD_TIMES, LongFormOptions
from espnet_medusa.inference.longform.moving_window import History, MovingWindow
from espnet_medusa.inference.longform.window import Clock, Window, WindowDecoding
from espnet_medusa.inference.longform.word_times import (
    MEDIAN_WIDTH,
    TimedWord,
    cheapest_path,
    sharpen,
)
from espnet_medusa.networks.whisper.tokens import make_tokenizer, read_whisper_tokens
from espnet_medusa.networks.whisper.transcript import TranscriptText, split_words

BLANK = 2
TOKENIZER = make_tokenizer(51865)
TEXT = TranscriptText(TOKENIZER, read_whisper_tokens(TOKENIZER))
TEXTS = [
    " So it's over, isn't it? Yes.", " ¿Qué pasó? «Nada», dijo (él).", "那是一个问题。对吗？",
    " naïve café 🙂 end", "ภาษาไทย", " a -- b ' c",
]  # fmt: skip


def best_of_all_paths(log_probs, units) -> list[list[int]] | None:
    """Frames of each unit on the best path; None: there is no path."""
    best, places = -np.inf, None
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        # Repeats merged, blanks removed.
        runs = itertools.groupby(enumerate(path), key=lambda pair: pair[1])
        written = [(unit, [frame for frame, _ in run]) for unit, run in runs if unit != BLANK]
        score = log_probs[range(len(path)), path].sum()
        if [unit for unit, _ in written] == [*units] and (places is None or score > best):
            best, places = score, [frames for _, frames in written]
    return places


def posteriors(rng, frames: int, columns: int) -> np.ndarray:
    values = rng.exponential(size=(frames, columns))
    return values / values.sum(axis=1, keepdims=True)


def test_units_are_aligned_by_the_best_of_all_paths():
    with_path = repeated = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        frames = 1 + seed % 5
        probabilities = posteriors(rng, frames, 4)
        units = rng.choice([0, 3], rng.integers(0, frames + 1))
        logs = np.log(probabilities)
        expected, spans = best_of_all_paths(logs, units), align_units(logs, units, BLANK)
        if expected is None:  # too few frames
            assert spans.ends[-1] == frames and len(spans.starts) == len(units)
            continue
        with_path += 1
        repeated += bool((units[1:] == units[:-1]).any())
        assert [*spans.starts] == [frames[0] for frames in expected]
        assert [*spans.ends] == [frames[-1] + 1 for frames in expected]
        pairs = zip(expected, units, strict=True)
        means = [probabilities[places, unit].mean() for places, unit in pairs]
        assert spans.probabilities == pytest.approx(means)
    assert 50 < with_path < 80 and repeated > 5


def test_an_impossible_unit_gets_frames_of_blanks():
    probabilities = np.zeros((6, 4))
    probabilities[[0, 1, 2, 3, 4, 5], [0, 0, BLANK, BLANK, 1, 1]] = 1.0
    with np.errstate(divide="ignore"):
        spans = align_units(np.log(probabilities), [0, 3, 1], BLANK)
    assert spans.starts[0] == 0 and spans.ends[2] == 6
    assert spans.ends[0] <= spans.starts[1] < spans.ends[1] <= spans.starts[2]
    assert spans.probabilities[1] == 0


@pytest.mark.parametrize(("frames", "units"), [(1, [0, 1]), (3, [0, 0, 0]), (2, [1] * 9), (1, [3])])
def test_units_share_too_few_frames(frames, units):
    probabilities = posteriors(np.random.default_rng(frames), frames, 4)
    spans = align_units(np.log(probabilities), units, BLANK)
    edges = np.linspace(0, frames, len(units) + 1)
    assert spans.starts == pytest.approx(edges[:-1]) and spans.ends == pytest.approx(edges[1:])
    first = [int(edge + 1e-9) for edge in edges[:-1]]
    assert spans.probabilities == pytest.approx(probabilities[first, units])


def timed(sizes, spans):
    """Times of words with these numbers of units, in 4 s with 10 frames a second."""
    words = [(f" w{place}", [0] * (1 + place)) for place in range(len(sizes))]
    starts, ends, probabilities = np.array(spans, dtype=float).reshape(-1, 3).T
    found = time_words_by_units(words, sizes, UnitSpans(starts, ends, probabilities), 10, 4.0)
    expected = [(text, len(tokens)) for text, tokens in words]
    assert [(word.text, word.tokens) for word in found] == expected
    return [(word.start_s, word.end_s, word.probability) for word in found]


def test_a_word_has_the_times_of_its_units():
    spans = [(2, 3, 0.5), (5, 7, 1.0), (7, 8, 0.25), (20, 24, 0.75)]
    assert timed([2, 1, 1], spans) == [(0.2, 0.7, 0.75), (0.7, 0.8, 0.25), (2.0, 2.4, 0.75)]


@cases(
    ([1, 0, 1], [(1.0, 2.0)]),
    ([0, 1, 1], [(0.0, 0.5)]),
    ([1, 1, 0], [(3.0, 4.0)]),
    ([1, 0, 0, 1], [(1.0, 1.5), (1.5, 2.0)]),
    ([0, 0, 1, 1, 0, 0], [(0.0, 0.25), (0.25, 0.5), (3.0, 3.5), (3.5, 4.0)]),
)
def test_a_word_without_units_is_between_its_neighbors(sizes, expected):
    found = timed(sizes, [(5, 10, 0.5), (20, 30, 0.5)])
    assert [one[:2] for one, size in zip(found, sizes, strict=True) if size] == [
        (0.5, 1.0), (2.0, 3.0)
    ]  # fmt: skip
    without = [one for one, size in zip(found, sizes, strict=True) if not size]
    assert [one[:2] for one in without] == expected
    assert {probability for *_, probability in without} == {0.0}


def test_words_without_any_units_share_the_window():
    assert timed([0, 0], []) == [(0.0, 2.0, 0.0), (2.0, 4.0, 0.0)] and timed([], []) == []


@pytest.mark.parametrize("source", WORD_TIMES)
def test_only_attention_shortens_long_words(source):
    """Long words after a sentence and after a pause: with attention they include the pause."""
    times = [(2.0, 2.1), (2.2, 2.3), (2.3, 2.34), (3.0, 4.0), (4.1, 4.2)]
    texts = [" It", " is", ".", " Extraordinary", " indeed"]
    tokens = [TOKENIZER.encode(text, add_special_tokens=False) for text in texts]
    rows = zip(texts, tokens, times, strict=True)
    words = [TimedWord(text, len(own), *place, 0.5) for text, own, place in rows]
    first_time = TEXT.tokens.first_time
    options = LongFormOptions(word_timestamps=True, word_times=source)
    written = (first_time, *(one for own in tokens for one in own), first_time + 250)
    clock, history = Clock(first_time, 2), History((), 100, False)
    moving = MovingWindow(3000, 3000, clock, TEXT, options, history, [(0, 3000)])
    decoding = WindowDecoding(written, "".join(texts), 0.0, 0.0, 0.0)
    (found,) = moving.take(Window(0, 3000), decoding, lambda tokens: words)
    assert [word.text for word in found.words] == [" It", " is.", *texts[3:]]
    places = [(word.start_s, word.end_s) for word in found.words]
    assert (places == [*times[:2], *times[3:]]) == (source == "ctc")
    assert (found.start_s, found.end_s) == (places[0][0], places[-1][1])


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_path_equals_openais(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    costs = rng.standard_normal((rng.integers(1, 9), rng.integers(1, 25)))
    if seed % 2:  # with ties
        costs = np.round(costs)
    # Without numba, whose compilation takes longer than the rest.
    monkeypatch.setattr(timing, "backtrace", timing.backtrace.py_func)
    assert np.array_equal(np.stack(cheapest_path(costs)), timing.dtw_cpu.py_func(costs))


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 9, 40])
def test_sharpening_equals_openais(frames):
    weights = torch.randn(3, 5, frames, generator=torch.Generator().manual_seed(frames)).softmax(-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    expected = timing.median_filter((weights - mean) / deviation, MEDIAN_WIDTH).nan_to_num()
    assert torch.allclose(sharpen(weights), expected, atol=1e-6)


@combinations(language=["en", "es", "zh", "th"], text=TEXTS)
def test_splitting_into_words_equals_openais(text, language):
    openai = get_tokenizer(True, language=language, task="transcribe")
    tokens, rng = openai.encode(text), random.Random(f"{text} {language}")
    # The cut may be within a character.
    for cut in (0, rng.randrange(len(tokens))):
        some = [*tokens[cut:], openai.eot]
        words = split_words(some, TEXT.decode, TEXT.tokens.end, language)
        expected = openai.split_to_word_tokens(some)
        assert ([text for text, _ in words], [ids for _, ids in words]) == expected


@cases(
    (" So 🙂", 1, [" So", " �"]),
    (" So 🙂", 2, [" So", " �"]),
    (" Yes 🙂 and no", None, [" Yes", " �", " and", " no"]),
    ("👩‍👩‍👧", 1, None),
)
def test_half_a_character_loses_no_word(text, missing, expected):
    """Tokens that are no whole character belong to the word before; every token is in a word."""
    tokens = TOKENIZER.encode(text, add_special_tokens=False)
    if missing is None:  # in the middle
        emoji = TOKENIZER.encode(" 🙂", add_special_tokens=False)
        first = next(at for at in range(len(tokens)) if tokens[at : at + 2] == emoji[:2])
        del tokens[first + len(emoji) - 1]
    else:
        tokens = tokens[:-missing]
    end = TEXT.tokens.end
    for language in ("en", "ja"):
        words = split_words([*tokens, end], TEXT.decode, end, language)
        assert [one for _, own in words for one in own] == [*tokens, end]
        assert words[-1] == (TEXT.decode([end]), [end])
        assert "".join(word for word, _ in words[:-1]) == TEXT.decode(tokens)
        if language == "en" and expected:
            assert [word for word, _ in words[:-1]] == expected
