"""Texts that draft, plain or segments with times, and their parts for windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from espnet_medusa.decoding.draft.alignment import place_of_end
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.inference.longform.window import Clock, Window
from espnet_medusa.networks.whisper.transcript import TranscriptText

MARGIN_TOKENS = 224  # of a plain text, in which a window's text may begin later than expected


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


class WindowDrafts:
    """The parts of a recording's draft text that draft its windows.

    With times, the part of a window has the segments that it contains, or their larger half. A
    plain text continues where the text of the window before has ended.
    """

    def __init__(self, draft: DraftText, text: TranscriptText, clock: Clock, most: int):
        """Tokenize a text; ``most`` is the maximum number of tokens of a plain text's part."""
        self.clock, self.most, self.place = clock, most, 0
        self.tokens = text.encode(draft) if isinstance(draft, str) else []
        timed = [] if isinstance(draft, str) else timed_texts(draft)
        self.timed = [(one, text.encode(one.text)) for one in timed if one.text.strip()]
        self.is_plain = isinstance(draft, str)

    def part(self, window: Window, timestamps: bool) -> list[int]:
        """Return the tokens that draft a window; ``timestamps``: whether it writes timestamps."""
        if self.is_plain:
            return self.tokens[self.place : self.place + self.most]
        part = []
        for one, tokens in self.timed:
            if one.start_s < window.end_s and one.start_s + one.end_s > 2 * window.start_s:
                times = [self._time(s - window.start_s) for s in (one.start_s, one.end_s)]
                part += [times[0], *tokens, times[1]] if timestamps else tokens
        return part

    def _time(self, seconds: float) -> int:
        """Return the token of the nearest timestamp in a window."""
        place = min(max(round(seconds / self.clock.step_s), 0), self.clock.count - 1)
        return self.clock.first + place

    def written(self, tokens: Sequence[int]) -> None:
        """Continue a plain text after a window's text, unless that is not similar to it."""
        rest = self.tokens[self.place : self.place + 2 * len(tokens) + MARGIN_TOKENS]
        self.place += place_of_end(rest, tokens) or 0
