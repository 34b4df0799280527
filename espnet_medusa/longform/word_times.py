"""When each word of a window is said: from what its tokens attend to, to words of segments.

openai-whisper's way (``timing.py``): the attention of some heads, normalised over tokens and
smoothed, is a matrix through which the text finds its cheapest way in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from espnet_medusa.longform.dynamic_time_warping import cheapest_path
from espnet_medusa.longform.segment import Segment, Word

MEDIAN_WIDTH = 7
LONGEST_MEDIAN_S = 0.7
SENTENCE_ENDS = ".。!！?？"
NEAR_S = 0.5


@dataclass
class TimedWord:
    """A word within its window.

    Attributes:
        text: With the space before it; empty once its neighbour has it.
        tokens: So many.
        start_s, end_s: In the window.
        probability: Mean of its tokens'.
    """

    text: str
    tokens: int
    start_s: float
    end_s: float
    probability: float

    @property
    def duration_s(self) -> float:
        """How long it takes."""
        return self.end_s - self.start_s


def time_words(
    words: Sequence[tuple[str, list[int]]],
    attention: torch.Tensor,
    probabilities: Sequence[float],
    frames_per_s: float,
) -> list[TimedWord]:
    """Words with their times.

    Args:
        words: Texts and tokens, T of these in all; the last stands for the end symbol.
        attention: (H, T + 1, S) weights behind the last token of the prompt and the T of the text.
        probabilities: T.
        frames_per_s: Of the S.
    """
    if len(words) <= 1:
        return []
    rows, frames = cheapest_path(-attention.mean(dim=0).double().cpu().numpy())
    starts = frames[np.diff(rows, prepend=-1) > 0] / frames_per_s
    edges = np.cumsum([0, *(len(tokens) for _, tokens in words[:-1])])
    return [
        TimedWord(
            text,
            len(tokens),
            float(starts[first]),
            float(starts[last]),
            float(np.mean(probabilities[first:last])),
        )
        for (text, tokens), first, last in zip(words[:-1], edges[:-1], edges[1:], strict=True)
    ]


def sharpen(attention: torch.Tensor) -> torch.Tensor:
    """(H, T, S) weights, normalised over the tokens and smoothed by a median over frames."""
    deviation, mean = torch.std_mean(attention, dim=-2, keepdim=True, unbiased=False)
    attention = ((attention - mean) / deviation).nan_to_num()  # of a lone frame all weights are 1
    margin = MEDIAN_WIDTH // 2
    if attention.size(-1) <= margin:
        return attention
    padded = torch.nn.functional.pad(attention, (margin, margin), mode="reflect")
    return padded.unfold(-1, MEDIAN_WIDTH, 1).median(dim=-1).values


def add_words(
    segments: Sequence[Segment],
    counts: Sequence[int],
    words: Sequence[TimedWord],
    window_start_s: float,
    last_speech_s: float,
    prepended: str,
    appended: str,
    hold_pauses: bool,
) -> list[Segment]:
    """Segments with their words, and with their words' times.

    Args:
        segments: Of a window.
        counts: Text tokens of each.
        words: Of all of them; changed.
        window_start_s: In the recording.
        last_speech_s: Where the last word before them ends.
        prepended: Punctuation that belongs to the word behind it.
        appended: To the one before it.
        hold_pauses: Whether a pause may be part of the words around it, which are shortened then.
    """
    durations = np.array([word.duration_s for word in words if word.duration_s != 0])
    median_s = min(LONGEST_MEDIAN_S, float(np.median(durations)) if len(durations) else 0.0)
    if hold_pauses and len(durations):
        _shorten_at_sentence_ends(words, 2 * median_s)
    merge_punctuation(words, prepended, appended)
    found, place = [], 0
    for segment, count in zip(segments, counts, strict=True):
        own, seen = [], 0
        while place < len(words) and seen < count:
            word, place = words[place], place + 1
            seen += word.tokens
            if word.text:
                start_s = round(window_start_s + word.start_s, 2)
                end_s = round(window_start_s + word.end_s, 2)
                own.append(TimedWord(word.text, word.tokens, start_s, end_s, word.probability))
        if own:
            if hold_pauses:
                _shorten_after_pause(own, last_speech_s, median_s)
            segment = _between(segment, own, median_s)
            last_speech_s = segment.end_s
        finished = (Word(one.text, one.start_s, one.end_s, one.probability) for one in own)
        found.append(replace(segment, words=tuple(finished)))
    return found


def merge_punctuation(words: Sequence[TimedWord], prepended: str, appended: str) -> None:
    """Punctuation goes to the word that it belongs to; its own place stays, without a text."""
    following = len(words) - 1
    for place in range(len(words) - 2, -1, -1):
        word = words[place]
        if word.text.startswith(" ") and word.text.strip() in prepended:
            _take_over(words[following], word, word.text + words[following].text)
        else:
            following = place
    previous = 0
    for place in range(1, len(words)):
        word = words[place]
        if not words[previous].text.endswith(" ") and word.text in appended:
            _take_over(words[previous], word, words[previous].text + word.text)
        else:
            previous = place


def _take_over(word: TimedWord, other: TimedWord, text: str) -> None:
    word.text, word.tokens = text, word.tokens + other.tokens
    other.text, other.tokens = "", 0


def _shorten_at_sentence_ends(words: Sequence[TimedWord], most_s: float) -> None:
    """What is too long around the end of a sentence holds a pause."""
    for before, word in zip(words, words[1:], strict=False):
        if word.duration_s > most_s:
            if word.text in SENTENCE_ENDS:
                word.end_s = word.start_s + most_s
            elif before.text in SENTENCE_ENDS:
                word.start_s = word.end_s - most_s


def _shorten_after_pause(words: list[TimedWord], last_speech_s: float, median_s: float) -> None:
    """Nor do the first two words behind a pause take more than twice the usual time."""
    most_s, first = 2 * median_s, words[0]
    second = words[1] if len(words) > 1 else None
    too_long = first.duration_s > most_s or (
        second is not None and second.end_s - first.start_s > 2 * most_s
    )
    if first.end_s - last_speech_s > 4 * median_s and too_long:
        if second is not None and second.duration_s > most_s:
            first.end_s = second.start_s = max(second.end_s / 2, second.end_s - most_s)
        first.start_s = max(0, first.end_s - most_s)


def _between(segment: Segment, words: list[TimedWord], median_s: float) -> Segment:
    """A segment lasts as long as its words, unless the first or the last is far outside."""
    first, last, start_s, end_s = words[0], words[-1], segment.start_s, segment.end_s
    if start_s < first.end_s and start_s - NEAR_S > first.start_s:
        first.start_s = max(0, min(first.end_s - median_s, start_s))
    else:
        start_s = first.start_s
    if end_s > last.start_s and end_s + NEAR_S < last.end_s:
        last.end_s = max(last.start_s + median_s, end_s)
    else:
        end_s = last.end_s
    return replace(segment, start_s=start_s, end_s=end_s)
