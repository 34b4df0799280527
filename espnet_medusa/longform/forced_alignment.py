"""Where the units of a known text are said: the likeliest way of it through a CTC branch's frames.

Of all labellings of the frames that spell the text, blanks between units and repeats of a unit
included, the most probable one, by the Viterbi algorithm: Graves et al., "Connectionist temporal
classification", 2006, section 4, with the maximum in the place of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEAST = -1e6  # log-probability of what a branch rules out: the text is there all the same


class UnitSpans(NamedTuple):
    """Places of L units.

    Attributes:
        starts, ends: (L,) in frames, an end behind the last one.
        probabilities: (L,) mean posteriors of each in its frames.
    """

    starts: np.ndarray
    ends: np.ndarray
    probabilities: np.ndarray


def align_units(log_probs: np.ndarray, units: Sequence[int], blank: int) -> UnitSpans:
    """Places of a text's units; where frames are too few for them, they share these evenly.

    Args:
        log_probs: (S, N) of a CTC branch, S above 0.
        units: L columns, none of them the blank.
        blank: Column of the blank.
    """
    frames, units = len(log_probs), np.asarray(units, dtype=int)
    repeats = np.count_nonzero(units[1:] == units[:-1])  # a blank stands between
    if len(units) + repeats > frames:
        edges = np.arange(len(units) + 1) * (frames / len(units))
        said = np.exp(log_probs[edges[:-1].astype(int), units])
        return UnitSpans(edges[:-1], edges[1:], said)
    states = np.full(2 * len(units) + 1, blank)
    states[1::2] = units
    path = _likeliest_path(np.maximum(log_probs[:, states], LEAST), states)
    places = 2 * np.arange(len(units)) + 1
    starts = np.searchsorted(path, places)
    ends = np.searchsorted(path, places, side="right")
    said = np.exp(log_probs[np.arange(frames), states[path]])
    means = [said[start:end].mean() for start, end in zip(starts, ends, strict=True)]
    return UnitSpans(starts, ends, np.array(means))


def _likeliest_path(emissions: np.ndarray, states: np.ndarray) -> np.ndarray:
    """(S,) states, from one of the first two to one of the last two.

    Args:
        emissions: (S, 2 L + 1) log-probabilities of the states' columns.
        states: (2 L + 1,) columns, every other one the blank.
    """
    frames, count = emissions.shape
    # The blank between two units may be left out, unless they are the same one.
    skips = np.zeros(count, dtype=bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    scores = np.full(count, -np.inf)
    scores[:2] = emissions[0, :2]
    sources = np.full((3, count), -np.inf)  # from the state itself, the one before, two before
    steps = np.zeros((frames, count), dtype=np.int8)
    for frame in range(1, frames):
        sources[0] = scores
        sources[1, 1:] = scores[:-1]
        sources[2, skips] = scores[:-2][skips[2:]]
        steps[frame] = sources.argmax(axis=0)
        scores = sources.max(axis=0) + emissions[frame]
    path = np.empty(frames, dtype=int)
    path[-1] = count - 1 if count == 1 or scores[-1] >= scores[-2] else count - 2
    for frame in range(frames - 1, 0, -1):
        path[frame - 1] = path[frame] - steps[frame, path[frame]]
    return path
