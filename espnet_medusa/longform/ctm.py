"""NIST's ctm: words with their times."""

from collections.abc import Iterable

from espnet_medusa.longform.segment import Segment

CHANNEL = 1


def ctm_lines(recording: str, segments: Iterable[Segment]) -> str:
    """Recording, channel, start, duration, word and probability, a line for each word."""
    return "".join(
        f"{recording} {CHANNEL} {word.start_s:.2f} {word.end_s - word.start_s:.2f} "
        f"{word.text.strip()} {word.probability:.2f}\n"
        for segment in segments
        for word in segment.words
        if word.text.strip()
    )
