"""Loops: when a text is called one, and that searches with a rule stop there, with any drafts."""

import random

import pytest
from searches import random_search_model

from espnet_medusa.longform.repetition import LOOP_REPEATS, LOOP_TOKENS, ends_in_loop


def loop_length(tokens: list[int]) -> int:
    """Length of the longest tail that repeats a phrase ``LOOP_REPEATS`` times, by comparison."""
    longest = 0
    for period in range(1, len(tokens) // LOOP_REPEATS + 1):
        for count in range(LOOP_REPEATS * period, len(tokens) + 1):
            tail = tokens[-count:]
            if all(a == b for a, b in zip(tail, tail[period:], strict=False)):
                longest = max(longest, count)
    return longest


@pytest.mark.parametrize("seed", range(40))
def test_loops_are_found_as_by_comparing_all_tails(seed):
    rng = random.Random(seed)
    phrase = [rng.randrange(3) for _ in range(rng.choice([1, 2, 3, 7, 15, 30]))]
    tokens = [rng.randrange(9) for _ in range(rng.randrange(40))]
    tokens += (phrase * 100)[: rng.randrange(150)]
    if rng.random() < 0.3:
        tokens.append(9)
    assert ends_in_loop(tokens) == (loop_length(tokens) >= LOOP_TOKENS)


def test_spoken_repetitions_are_no_loops():
    no = [645, 11]  # "no,"
    assert not ends_in_loop([10, *no * 20])
    assert not ends_in_loop([*no * 40, 300, 301, 302])
    assert ends_in_loop([10, *no * 24])
    assert not ends_in_loop([])
