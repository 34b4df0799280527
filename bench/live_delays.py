"""Delays of words in a stream: pure functions on the events of a live system."""

import re
from collections.abc import Iterable, Sequence
from os.path import commonprefix
from typing import TypeVar

import jiwer
from live_systems.base import Event

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
Value = TypeVar("Value")


def words_of(pieces: Iterable[tuple[str, Value]]) -> list[tuple[str, Value]]:
    """Return the words of joined pieces of text, in lower case without punctuation.

    A word has the value of the piece with its last letter.
    """
    text, values = "", []
    for piece, value in pieces:
        text += piece
        values += [value] * len(piece)
    return [
        (match[0].lower().replace("’", "'"), values[match.end() - 1])
        for match in WORD.finditer(text)
    ]


def confirmed_words(events: Sequence[Event]) -> list[tuple[str, Event]]:
    """Return the confirmed words, each with the event that confirmed its last letter."""
    return words_of((event.confirmed, event) for event in events)


def delays(
    reference: Sequence[tuple[str, float]], events: Sequence[Event]
) -> list[tuple[float, float]]:
    """Return the delays in s of words that equal their word in the reference, with and without
    computation.

    Words are aligned by edit distance. A delay is the time of confirmation minus the end of the
    word; without computation, this time is that of the last audio that the update took.

    Args:
        reference: Words and their ends in s in the stream.
    """
    found = confirmed_words(events)
    if not found or not reference:
        return []
    texts = (" ".join(word for word, _ in words) for words in (reference, found))
    (chunks,) = jiwer.process_words(*texts).alignments
    pairs = []
    for chunk in chunks:
        if chunk.type == "equal":
            ends = (end for _, end in reference[chunk.ref_start_idx : chunk.ref_end_idx])
            seen = (event for _, event in found[chunk.hyp_start_idx : chunk.hyp_end_idx])
            pairs += zip(ends, seen, strict=True)
    return [(event.ready_s - end_s, event.audio_s - end_s) for end_s, event in pairs]


def revised_words(events: Sequence[Event]) -> int | None:
    """Return how often a shown word was replaced or taken back; None: no word is tentative.

    The words of each update after the first that differs from the next update's are counted.
    """
    if all(event.tentative is None for event in events):
        return None
    count, confirmed = 0, ""
    before: list[str] = []
    for event in events:
        confirmed += event.confirmed
        words = [word for word, _ in words_of([(confirmed + (event.tentative or ""), None)])]
        same = len(commonprefix([before, words]))
        count += len(before) - same
        before = words
    return count
