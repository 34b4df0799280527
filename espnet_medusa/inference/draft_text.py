"""Texts that draft: plain, or segments with times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from espnet_medusa.inference.longform.segment import Segment


class TimedText(NamedTuple):
    """A part of a draft text and its times in the recording."""

    start_s: float
    end_s: float
    text: str


# A text, or segments in order: each a ``Segment`` or start, end (seconds) and text.
DraftText = str | Sequence[TimedText | Segment | tuple[float, float, str]]


def timed_texts(text: DraftText) -> list[TimedText]:
    """Return the segments of a text that is not plain."""
    return [
        TimedText(*one) if isinstance(one, tuple) else TimedText(one.start_s, one.end_s, one.text)
        for one in text
    ]


def plain_text(text: DraftText) -> str:
    """Return the text without times."""
    if isinstance(text, str):
        return text
    return " ".join(one.text.strip() for one in timed_texts(text))
