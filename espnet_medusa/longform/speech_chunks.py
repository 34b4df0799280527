"""Speech packed into chunks that a model hears at once: a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SpeechChunk:
    """A span of a recording from its first to its last speech; pauses within it stay.

    Attributes:
        start, end: Frames of 10 ms, with what is heard around the speech.
        speech_end: Where speech ends.
    """

    start: int
    end: int
    speech_end: int


def pack_speech(
    speech: Sequence[tuple[int, int]], clip: tuple[int, int], most: int, margin: int
) -> list[SpeechChunk]:
    """Put neighbours together as long as they fit; all in frames of 10 ms.

    Args:
        speech: Starts and ends, in order, without overlap.
        clip: Start and end of what may be heard at all.
        most: No chunk is longer, unless speech without a pause is.
        margin: Audio before and after the speech of a chunk, up to the middle between two chunks.
    """
    groups: list[tuple[int, int]] = []
    for start, end in speech:
        start, end = max(start, clip[0]), min(end, clip[1])
        if start >= end:
            continue
        if groups and end - groups[-1][0] <= most - 2 * margin:
            groups[-1] = groups[-1][0], end
        else:
            groups.append((start, end))
    # What lies between two chunks is not heard twice.
    middles = [(end + start) // 2 for (_, end), (start, _) in zip(groups, groups[1:], strict=False)]
    edges = [clip[0], *middles, clip[1]]
    return [
        SpeechChunk(max(start - margin, before), min(end + margin, behind), end)
        for (start, end), before, behind in zip(groups, edges, edges[1:], strict=False)
    ]
