"""Segments and words with times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Word:
    """A word with its punctuation.

    Attributes:
        text: With the space before it, in languages with spaces.
        start_s, end_s: In the recording.
        probability: Mean over its tokens.
    """

    text: str
    start_s: float
    end_s: float
    probability: float


@dataclass(frozen=True)
class Segment:
    """A segment between two timestamps.

    Attributes:
        seek: First frame (10 ms) of its window.
        start_s, end_s: In the recording.
        text: With the space before it; empty for a segment without duration or without text.
        tokens: With timestamps.
        temperature: Of its window.
        average_log_probability: Of its window's tokens and end symbol.
        compression_ratio: Of its window's text.
        no_speech_probability: Of its window.
        words: Empty without word timestamps.
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
    """Build a segment from its fields as JSON has them."""
    words = tuple(Word(**word) for word in fields["words"])
    return Segment(**{**fields, "tokens": tuple(fields["tokens"]), "words": words})
