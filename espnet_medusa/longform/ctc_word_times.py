"""When each word of a window is said: from the places of its units in a CTC branch's frames."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from espnet_medusa.longform.forced_alignment import UnitSpans
from espnet_medusa.longform.word_times import TimedWord


def time_words_by_units(
    words: Sequence[tuple[str, list[int]]],
    sizes: Sequence[int],
    spans: UnitSpans,
    frames_per_s: float,
    duration_s: float,
) -> list[TimedWord]:
    """Words with their times: each from its first unit to the end of its last.

    Words without units share the time that their neighbours leave between them, with probability 0.

    Args:
        words: W texts and tokens.
        sizes: W, units of each, L in all.
        spans: Of the L units.
        frames_per_s: Of the branch.
        duration_s: Of the window.
    """
    edges = np.cumsum([0, *sizes])
    timed = [
        TimedWord(
            text,
            len(tokens),
            float(spans.starts[first] / frames_per_s),
            float(spans.ends[last - 1] / frames_per_s),
            float(spans.probabilities[first:last].mean()),
        )
        if first < last
        else TimedWord(text, len(tokens), 0.0, 0.0, 0.0)
        for (text, tokens), first, last in zip(words, edges, edges[1:], strict=False)
    ]
    _place_between_neighbours(timed, sizes, duration_s)
    return timed


def _place_between_neighbours(
    words: Sequence[TimedWord], sizes: Sequence[int], duration_s: float
) -> None:
    """Of words without units, those in a row side by side."""
    for spelt, run in groupby(range(len(words)), key=lambda place: sizes[place] > 0):
        if spelt:
            continue
        own = [*run]
        before, behind = own[0] - 1, own[-1] + 1
        start_s = words[before].end_s if before >= 0 else 0.0
        end_s = words[behind].start_s if behind < len(words) else duration_s
        edges_s = np.linspace(start_s, end_s, len(own) + 1).tolist()
        for place, word_start_s, word_end_s in zip(own, edges_s, edges_s[1:], strict=False):
            words[place].start_s, words[place].end_s = word_start_s, word_end_s
