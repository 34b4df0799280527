"""Loops of a decoder: a text whose last tokens are one phrase, again and again."""

from collections.abc import Sequence

LOOP_TOKENS = 48  # shortest loop, in tokens: more than a person repeats in one breath
LOOP_REPEATS = 4  # fewest repeats of the phrase


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Return whether the last tokens repeat a phrase of any length.

    The phrase occurs at least ``LOOP_REPEATS`` times, with ``LOOP_TOKENS`` tokens or more in all.
    """
    longest = len(tokens) // LOOP_REPEATS
    return any(
        _periodic(tokens, period, max(LOOP_TOKENS, LOOP_REPEATS * period))
        for period in range(1, longest + 1)
    )


def _periodic(tokens: Sequence[int], period: int, count: int) -> bool:
    """Return whether the last ``count`` tokens repeat their first ``period`` tokens."""
    if count > len(tokens):
        return False
    end = len(tokens)
    return all(tokens[end - k] == tokens[end - k - period] for k in range(1, count - period + 1))
