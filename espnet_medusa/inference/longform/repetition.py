"""Loops of a decoder: a text whose last tokens are one phrase, again and again."""

from collections.abc import Sequence

LOOP_TOKENS = 48  # shortest loop, in tokens: more than a person repeats in one breath
LOOP_REPEATS = 4  # fewest repeats of the phrase


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Return whether the last tokens repeat a phrase of any length.

    The phrase occurs at least ``LOOP_REPEATS`` times, with ``LOOP_TOKENS`` tokens or more in all.
    """
    periods = range(1, len(tokens) // LOOP_REPEATS + 1) if len(tokens) >= LOOP_TOKENS else ()
    tails = ((tokens[-max(LOOP_TOKENS, LOOP_REPEATS * period) :], period) for period in periods)
    return any(tail[period:] == tail[:-period] for tail, period in tails)
