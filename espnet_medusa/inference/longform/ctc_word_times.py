"""Times of the words of a window by forced alignment with a CTC branch."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from espnet_medusa.inference.longform.word_times import TimedWord

LOWEST = -1e6  # floor of log-probabilities, which may be -inf


class UnitSpans(NamedTuple):
    starts: np.ndarray  # (L,) in frames
    ends: np.ndarray  # (L,) frame after the last one
    probabilities: np.ndarray  # (L,) mean posteriors of each unit in its frames


def align_units(log_probs: np.ndarray, units: Sequence[int], blank: int) -> UnitSpans:
    """Align a text's units by the most probable path of CTC labels.

    The Viterbi algorithm for CTC, with blanks between units and repeats of a unit: Graves et al.,
    "Connectionist temporal classification", 2006, section 4, with maximum instead of sum. With too
    few frames for a path, each unit gets an equal share of the frames.

    Args:
        log_probs: (S, N) of a CTC branch, S above 0.
        units: L columns, none of them the blank.
    """
    frames, units = len(log_probs), np.asarray(units, dtype=int)
    repeats = np.count_nonzero(units[1:] == units[:-1])  # a blank separates equal units
    if len(units) + repeats > frames:
        edges = np.arange(len(units) + 1) * (frames / len(units))
        posteriors = np.exp(log_probs[edges[:-1].astype(int), units])
        return UnitSpans(edges[:-1], edges[1:], posteriors)
    states = np.full(2 * len(units) + 1, blank)
    states[1::2] = units
    path = _best_path(np.maximum(log_probs[:, states], LOWEST), states)
    places = 2 * np.arange(len(units)) + 1
    starts = np.searchsorted(path, places)
    ends = np.searchsorted(path, places, side="right")
    posteriors = np.exp(log_probs[np.arange(frames), states[path]])
    means = [posteriors[start:end].mean() for start, end in zip(starts, ends, strict=True)]
    return UnitSpans(starts, ends, np.array(means))


def _best_path(emissions: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return the best path (S,) of states, from one of the first two to one of the last two.

    Args:
        emissions: (S, 2 L + 1) log-probabilities of the states' columns.
        states: (2 L + 1,) columns; every other one is the blank.
    """
    frames, count = emissions.shape
    # The path may skip the blank between two different units.
    skips = np.zeros(count, dtype=bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    scores = np.full(count, -np.inf)
    scores[:2] = emissions[0, :2]
    sources = np.full((3, count), -np.inf)  # from the same state, the previous, the one before it
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


def time_words_by_units(
    words: Sequence[tuple[str, list[int]]],
    sizes: Sequence[int],
    spans: UnitSpans,
    frames_per_s: float,
    duration_s: float,
) -> list[TimedWord]:
    """Return the times of words, each from its first unit to the end of its last.

    Words without units share the time between their neighbors, with probability 0.

    Args:
        words: W texts and tokens.
        sizes: W numbers of units, L in all.
    """
    edges = np.cumsum([0, *sizes])
    timed = []
    for (text, tokens), first, last in zip(words, edges, edges[1:], strict=False):
        start_s = end_s = probability = 0.0
        if first < last:
            start_s = float(spans.starts[first] / frames_per_s)
            end_s = float(spans.ends[last - 1] / frames_per_s)
            probability = float(spans.probabilities[first:last].mean())
        timed.append(TimedWord(text, len(tokens), start_s, end_s, probability))
    _place_between_neighbors(timed, sizes, duration_s)
    return timed


def _place_between_neighbors(
    words: Sequence[TimedWord], sizes: Sequence[int], duration_s: float
) -> None:
    """Set the times of words without units; a run of them is divided evenly."""
    for has_units, run in groupby(range(len(words)), key=lambda place: sizes[place] > 0):
        if has_units:
            continue
        places = [*run]
        before, after = places[0] - 1, places[-1] + 1
        start_s = words[before].end_s if before >= 0 else 0.0
        end_s = words[after].start_s if after < len(words) else duration_s
        edges_s = np.linspace(start_s, end_s, len(places) + 1).tolist()
        for place, word_start_s, word_end_s in zip(places, edges_s, edges_s[1:], strict=False):
            words[place].start_s, words[place].end_s = word_start_s, word_end_s
