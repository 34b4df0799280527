"""Compare the segments of long recordings."""

from collections.abc import Sequence
from itertools import zip_longest
from statistics import median

from contestants.base import Result, Segment

SAME_S = 0.005  # times are written in hundredths of a second


def same_segments(one: Result, other: Result) -> bool:
    """Return whether all segments have equal texts and times."""
    return first_difference(one, other) is None


def _same_segment(one: Segment | None, other: Segment | None) -> bool:
    if one is None or other is None:
        return False
    differences = abs(one.start_s - other.start_s), abs(one.end_s - other.end_s)
    return one.text.strip() == other.text.strip() and max(differences) < SAME_S


def common_segments(one: Result, other: Result) -> int:
    """Count the segments of ``one`` that ``other`` has, with the same times."""
    wanted = {*map(_key, other.segments)}
    return sum(_key(part) in wanted for part in one.segments)


def _key(part: Segment) -> tuple[float, float, str]:
    return round(part.start_s, 2), round(part.end_s, 2), part.text.strip()


def first_difference(one: Result, other: Result) -> dict | None:
    """Describe the first segment that differs; None: there is none."""
    for number, pair in enumerate(zip_longest(one.segments, other.segments)):
        if not _same_segment(*pair):
            scores = [part.average_log_probability if part else None for part in pair]
            return {
                "segment": number,
                "start_s": next(part.start_s for part in pair if part),
                "texts": [part.text if part else "" for part in pair],
                "average_log_probabilities": scores,
            }
    return None


def word_time_difference(pairs: Sequence[tuple[Result, Result]]) -> float | None:
    """Return the median difference of word times in segments with equal words."""
    differences = [
        abs(one_s - other_s)
        for one, other in pairs
        for left, right in zip(one.segments, other.segments, strict=False)
        if left.words and [word[0] for word in left.words] == [word[0] for word in right.words]
        for first, second in zip(left.words, right.words, strict=True)
        for one_s, other_s in zip(first[1:], second[1:], strict=True)
    ]
    return median(differences) if differences else None
