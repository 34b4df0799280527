"""Compute the words' times in a window by cross-attention, and add words to segments.

As in openai-whisper's ``timing.py``: attention weights of some heads, normalized over tokens and
smoothed, are aligned by dynamic time warping.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from espnet_medusa.inference.longform.segment import Segment, Word

MEDIAN_WIDTH = 7
LONGEST_MEDIAN_S = 0.7
SENTENCE_ENDS = ".。!！?？"
NEAR_S = 0.5
BOTH, DOWN, RIGHT = 0, 1, 2  # steps of a path through a matrix


@dataclass
class TimedWord:
    """A word and its times in the window."""

    text: str  # with the space before it; empty if it was merged into its neighbor
    tokens: int  # number of tokens
    start_s: float
    end_s: float
    probability: float  # mean over its tokens

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


def time_words(
    words: Sequence[tuple[str, list[int]]],
    attention: torch.Tensor,
    probabilities: Sequence[float],
    frames_per_s: float,
) -> list[TimedWord]:
    """Return the times of words by their tokens' attention.

    Args:
        words: Texts and tokens: T text tokens in all, then the end symbol as last word.
        attention: (H, T + 1, S) weights of the prompt's last token and the T text tokens.
        probabilities: T, of the text tokens.
        frames_per_s: Of the S frames.
    """
    if len(words) <= 1:
        return []
    rows, frames = cheapest_path(-attention.mean(dim=0).double().cpu().numpy())
    times = (frames[np.diff(rows, prepend=-1) > 0] / frames_per_s).tolist()
    edges = np.cumsum([0, *(len(tokens) for _, tokens in words[:-1])])
    return [
        TimedWord(
            text, len(tokens), times[first], times[last], float(np.mean(probabilities[first:last]))
        )
        for (text, tokens), first, last in zip(words[:-1], edges[:-1], edges[1:], strict=True)
    ]


def cheapest_path(costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns (L,) of the cheapest path through costs (N, M), corner to corner.

    Dynamic time warping: Sakoe and Chiba, "Dynamic programming algorithm optimization for spoken
    word recognition", 1978. If several steps cost the same, the path comes from the left.
    """
    steps, path = _steps(costs), []
    i, j = costs.shape
    while i > 0 and j > 0:
        path.append((i - 1, j - 1))
        step = steps[i, j]
        i, j = i - (step != RIGHT), j - (step != DOWN)
    rows, columns = np.array(path[::-1]).T
    return rows, columns


def _steps(costs: np.ndarray) -> np.ndarray:
    """Return the last step to each element (N + 1, M + 1); row 0 and column 0 are not used."""
    rows, columns = costs.shape
    # Elements of an anti-diagonal do not depend on each other.
    sums = np.full((rows + 1, columns + 1), np.inf, dtype=np.float32)
    steps = np.full((rows + 1, columns + 1), RIGHT, dtype=np.int8)
    sums[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, down, right = sums[i - 1, j - 1], sums[i - 1, j], sums[i, j - 1]
        step = np.where((down < both) & (down < right), DOWN, RIGHT)
        step = np.where((both < down) & (both < right), BOTH, step)
        best = np.choose(step, [both, down, right])
        sums[i, j] = costs[i - 1, j - 1] + best.astype(np.float64)
        steps[i, j] = step
    return steps


def sharpen(attention: torch.Tensor) -> torch.Tensor:
    """Normalize weights (H, T, S) over tokens, and apply a median filter over frames."""
    deviation, mean = torch.std_mean(attention, dim=-2, keepdim=True, unbiased=False)
    attention = ((attention - mean) / deviation).nan_to_num()  # with one frame all weights are 1
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
    """Add words to the segments of a window, and adjust the segments' times to them.

    Args:
        counts: Text tokens of each segment.
        words: Of all segments; changed in place.
        last_speech_s: End of the last word before the window.
        prepended: Punctuation that belongs to the following word.
        appended: Punctuation that belongs to the previous word.
        hold_pauses: Whether word times may include pauses; such words are shortened.
    """
    durations = np.array([word.duration_s for word in words if word.duration_s != 0])
    median_s = min(LONGEST_MEDIAN_S, float(np.median(durations)) if len(durations) else 0.0)
    if hold_pauses and len(durations):
        _shorten_at_sentence_ends(words, 2 * median_s)
    merge_punctuation(words, prepended, appended)
    timed, remaining = [], iter(words)
    for segment, count in zip(segments, counts, strict=True):
        members, seen = [], 0
        while seen < count and (word := next(remaining, None)) is not None:
            seen += word.tokens
            if word.text:
                start_s, end_s = window_start_s + word.start_s, window_start_s + word.end_s
                members.append(replace(word, start_s=round(start_s, 2), end_s=round(end_s, 2)))
        if members:
            if hold_pauses:
                _shorten_after_pause(members, last_speech_s, median_s)
            segment = _adjust(segment, members, median_s)
            last_speech_s = segment.end_s
        finished = [Word(one.text, one.start_s, one.end_s, one.probability) for one in members]
        timed.append(replace(segment, words=tuple(finished)))
    return timed


def merge_punctuation(words: Sequence[TimedWord], prepended: str, appended: str) -> None:
    """Merge punctuation into neighboring words; the merged entries remain, without text."""
    following = len(words) - 1
    for place in range(len(words) - 2, -1, -1):
        word = words[place]
        if word.text.startswith(" ") and word.text.strip() in prepended:
            _merge(words[following], word, word.text + words[following].text)
        else:
            following = place
    previous = 0
    for place in range(1, len(words)):
        word = words[place]
        if not words[previous].text.endswith(" ") and word.text in appended:
            _merge(words[previous], word, words[previous].text + word.text)
        else:
            previous = place


def _merge(word: TimedWord, other: TimedWord, text: str) -> None:
    word.text, word.tokens = text, word.tokens + other.tokens
    other.text, other.tokens = "", 0


def _shorten_at_sentence_ends(words: Sequence[TimedWord], most_s: float) -> None:
    """Limit the duration of sentence-end marks and of words after them: the rest is a pause."""
    for before, word in zip(words, words[1:], strict=False):
        if word.duration_s > most_s:
            if word.text in SENTENCE_ENDS:
                word.end_s = word.start_s + most_s
            elif before.text in SENTENCE_ENDS:
                word.start_s = word.end_s - most_s


def _shorten_after_pause(words: list[TimedWord], last_speech_s: float, median_s: float) -> None:
    """Limit the first two words after a pause to twice the median duration each."""
    most_s, first = 2 * median_s, words[0]
    second = words[1] if len(words) > 1 else None
    too_long = first.duration_s > most_s or (
        second is not None and second.end_s - first.start_s > 2 * most_s
    )
    if first.end_s - last_speech_s > 4 * median_s and too_long:
        if second is not None and second.duration_s > most_s:
            first.end_s = second.start_s = max(second.end_s / 2, second.end_s - most_s)
        first.start_s = max(0, first.end_s - most_s)


def _adjust(segment: Segment, words: list[TimedWord], median_s: float) -> Segment:
    """Set a segment's times to those of its words, unless a word is far outside the segment."""
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
