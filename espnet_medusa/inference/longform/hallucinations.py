"""Hallucinated segments: improbable, too short or too long words next to silence.

The rules of openai-whisper's ``hallucination_silence_threshold``.
"""

from collections.abc import Sequence
from typing import NamedTuple

from espnet_medusa.inference.longform.long_form_options import APPENDED, PREPENDED
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.inference.longform.window import FRAMES_PER_S, Window

PUNCTUATION = PREPENDED + APPENDED
IMPROBABLE, SHORT_S, LONG_S = 0.15, 0.133, 2.0
MOST_WORDS = 8
NEAR_EDGE_S = 2.0


class Stretch(NamedTuple):
    """A window and its place in the recording."""

    window: Window
    window_end_s: float  # end of a window of full length
    frames: int  # of the recording, 10 ms each
    last_speech_s: float  # end of the last word before the window


def is_anomalous(segment: Segment | None) -> bool:
    """Return whether a segment's first words look hallucinated."""
    if segment is None or not segment.words:
        return False
    words = [word for word in segment.words if word.text not in PUNCTUATION][:MOST_WORDS]
    score = 0.0
    for word in words:
        duration_s = word.end_s - word.start_s
        short_s, long_s = max(SHORT_S - duration_s, 0.0), max(duration_s - LONG_S, 0.0)
        score += (word.probability < IMPROBABLE) + short_s * 15 + long_s
    return score >= 3 or score + 0.01 >= len(words)


def leading_silence(segments: list[Segment], stretch: Stretch, threshold_s: float) -> int | None:
    """Return the next window's first frame if silence and a hallucination start the window."""
    first = _first_with_words(segments)
    if first is None or not is_anomalous(first):
        return None
    gap_s = first.start_s - stretch.window.start_s
    return stretch.window.seek + round(gap_s * FRAMES_PER_S) if gap_s > threshold_s else None


def first_hallucination(
    segments: Sequence[Segment], stretch: Stretch, threshold_s: float
) -> tuple[int, int] | None:
    """Find the first hallucinated segment between silences or other hallucinations.

    Return its index, and the first frame of the next window; None: there is none.
    """
    start_s, last_end_s = stretch.window.start_s, stretch.last_speech_s
    for place, segment in enumerate(segments):
        if not segment.words:
            continue
        if is_anomalous(segment):
            following = _first_with_words(segments[place + 1 :])
            next_s = stretch.window.end_s if following is None else following.words[0].start_s
            silence_before = (
                segment.start_s - last_end_s > threshold_s
                or segment.start_s < threshold_s
                or segment.start_s - start_s < NEAR_EDGE_S
            )
            silence_after = (
                next_s - segment.end_s > threshold_s
                or is_anomalous(following)
                or stretch.window_end_s - segment.end_s < NEAR_EDGE_S
            )
            if silence_before and silence_after:
                seek = round(max(start_s + 1, segment.start_s) * FRAMES_PER_S)
                rest_s = stretch.frames / FRAMES_PER_S - segment.end_s
                return place, stretch.frames if rest_s < threshold_s else seek
        last_end_s = segment.end_s
    return None


def _first_with_words(segments: Sequence[Segment]) -> Segment | None:
    return next((segment for segment in segments if segment.words), None)
