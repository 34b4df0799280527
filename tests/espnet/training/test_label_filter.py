"""Dropped training texts: planted texts, ties, shares, loops."""

import math
from dataclasses import replace

import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper.utils import compression_ratio as openai_compression_ratio

from espnet_medusa.espnet.training.label_filter import (
    EMPTY,
    ENDLESS,
    MISFIT,
    REPEATING,
    FilterOptions,
    WrittenText,
    dropped_texts,
    find_misfits,
    length_residuals,
)
from espnet_medusa.inference.longform.window import compression_ratio

LETTERS = "the quick brown fox jumps over a lazy dog while seven wizards brew"


def written(n_characters: int, duration_s: float = 10.0) -> WrittenText:
    """Return a text that repeats itself as little as language."""
    return WrittenText((LETTERS * (n_characters // len(LETTERS) + 1))[:n_characters], duration_s)


def natural(count: int) -> dict[str, WrittenText]:
    """Return texts of 12 to 16 characters per second."""
    result = {}
    for i in range(count):
        duration_s = 2.0 + i % 8
        n_characters = round(duration_s * (12 + 4 * (i * 7 % 100) / 100))
        result[f"utt{i:04d}"] = written(n_characters, duration_s)
    return result


def change(texts, key, **fields):
    texts[key] = replace(texts[key], **fields)


def reasons(unfit: dict[str, str]) -> set[str]:
    return {reason.split(":")[0] for reason in unfit.values()}


def test_planted_long_and_short_texts_are_dropped_and_exactly_5_percent():
    texts = natural(200)
    planted = {f"utt{i:04d}" for i in range(0, 200, 20)}
    for i, key in enumerate(sorted(planted)):
        length = len(texts[key].text)
        change(texts, key, text=written(length * 3 if i % 2 else max(1, length // 3)).text)
    unfit = dropped_texts(texts, FilterOptions(max_compression_ratio=100))
    assert unfit.keys() == planted and len(planted) == 10 and reasons(unfit) == {MISFIT}
    times = [float(reason.split()[2]) for reason in unfit.values()]
    assert all(2 < time < 4 or 0.2 < time < 0.5 for time in times)


def test_filter_is_two_sided_and_judges_length_against_seconds():
    texts = {f"u{i}": written(140, 10.0) for i in range(18)}
    # Texts of about twice and half the usual length misfit alike; long audio may have a long text.
    texts |= {"long": written(281, 10.0), "short": written(70, 10.0)}
    texts |= {"slow": written(420, 30.0), "brief": written(14, 1.0)}
    residuals = length_residuals(texts)
    assert residuals["long"] == pytest.approx(math.log(281 / 140))
    assert residuals["short"] == pytest.approx(-math.log(2))
    assert residuals["slow"] == residuals["brief"] == pytest.approx(0)
    assert find_misfits(residuals, 0.05) == ["long"]
    assert set(find_misfits(residuals, 0.1)) == {"long", "short"}


@cases((140, 0.05, 7), (30, 0.0, 0), (29, 0.1, 2), (100, 0.57, 57))
def test_share_is_rounded_down_to_utterances(count, fraction, n_dropped):
    assert len(dropped_texts(natural(count), FilterOptions(fraction))) == n_dropped


def test_ties_are_broken_by_id_not_by_order_or_rounding():
    forward = {key: written(140) for key in "fedcba"}
    forward |= {"long": written(280), "short": written(70)}
    for texts in (forward, dict(reversed(forward.items()))):
        residuals = length_residuals(texts)
        assert find_misfits(residuals, 1 / 8) == ["long"]
        assert find_misfits(residuals, 3 / 8) == ["long", "short", "a"]
    # Twice and half the usual length misfit equally, though their logarithms differ by 7e-16.
    equal = {key: written(100) for key in "uvwxyz"} | {"b": written(50), "a": written(200)}
    assert find_misfits(length_residuals(equal), 1 / 8) == ["a"]
    equal = {key: written(140) for key in "uvwxyz"} | {"b": written(280), "a": written(70)}
    assert find_misfits(length_residuals(equal), 1 / 8) == ["a"]


def test_faults_of_a_text_are_found_before_the_share():
    texts = natural(104)
    change(texts, "utt0005", text="")
    change(texts, "utt0006", ended=False)
    change(texts, "utt0007", text="and so on " * 12)
    change(texts, "utt0008", text="", ended=False)
    unfit = dropped_texts(texts)
    assert unfit["utt0005"] == unfit["utt0008"] == EMPTY
    assert unfit["utt0006"] == ENDLESS
    assert unfit["utt0007"].startswith(f"{REPEATING}: ")
    assert len(unfit) == 4 + 5 and reasons(unfit) == {EMPTY, ENDLESS, REPEATING, MISFIT}
    # Dropped texts do not count in the median.
    left = {key: text for key, text in texts.items() if key not in unfit}
    fit = length_residuals(left | {key: texts[key] for key in unfit if MISFIT in unfit[key]})
    assert {*find_misfits(fit, 0.05)} == {key for key in unfit if unfit[key].startswith(MISFIT)}


@settings(max_examples=50, deadline=None)
@given(st.text(min_size=1, max_size=60), st.integers(1, 30))
def test_compression_ratio_is_whispers(text, times):
    repeated = (text * times).strip()
    assert compression_ratio(repeated) == openai_compression_ratio(repeated)


def test_a_ratio_equal_to_the_threshold_is_allowed():
    text = "and so on " * 12
    ratio, texts = compression_ratio(text), {"u": WrittenText(text, 10.0)}
    assert not dropped_texts(texts, FilterOptions(max_compression_ratio=ratio))
    assert dropped_texts(texts, FilterOptions(max_compression_ratio=ratio - 0.01))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text("ab ", max_size=40), st.booleans()), max_size=60))
def test_exactly_the_share_of_faultless_texts_is_dropped(drawn):
    written_texts = [WrittenText(" ".join(text.split()), 5.0, ended) for text, ended in drawn]
    texts = {f"u{i}": text for i, text in enumerate(written_texts)}
    unfit = dropped_texts(texts)
    n_misfits = sum(reason.startswith(MISFIT) for reason in unfit.values())
    assert unfit.keys() <= texts.keys()
    assert n_misfits == (len(texts) - len(unfit) + n_misfits) // 20
    assert all(not text.text or not text.ended for key, text in texts.items()
               if unfit.get(key) in (EMPTY, ENDLESS))  # fmt: skip
    assert all(text.text and text.ended for key, text in texts.items() if key not in unfit)
