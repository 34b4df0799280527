"""What long audio becomes: segments, each with its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Word:
    """A word with the punctuation that belongs to it.

    Attributes:
        text: With the space before it, where the language has one.
        start_s, end_s: In the recording.
        probability: Mean of its tokens'.
    """

    text: str
    start_s: float
    end_s: float
    probability: float


@dataclass(frozen=True)
class Segment:
    """A stretch of speech between two timestamps.

    Attributes:
        seek: Frame of 10 ms at which its window begins.
        start_s, end_s: In the recording.
        text: With the space before it; empty where the segment lasts nothing or says nothing.
        tokens: Timestamps included.
        temperature: At which the window was decoded.
        average_log_probability: Of the window's tokens, the end symbol included.
        compression_ratio: Of the window's text.
        no_speech_probability: Of the window.
        words: Where word timestamps are asked for.
    """

    seek: int
    start_s: float
    end_s: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    average_log_probability: float
    compression_ratio: float
    no_speech_probability: float
    words: tuple[Word, ...] = ()


def read_segment(fields: Mapping[str, Any]) -> Segment:
    """A segment from what ``dataclasses.asdict`` made of it, through JSON."""
    words = tuple(Word(**word) for word in fields["words"])
    return Segment(**{**fields, "tokens": tuple(fields["tokens"]), "words": words})
