"""ESPnet's length options, by which every search ends at the latest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LengthLimits:
    """How long a text may be.

    Attributes:
        maxlenratio: Most tokens over encoder frames; negative: their number; 0: as many as
            frames, with end detection.
        minlenratio: The same for the fewest tokens.
    """

    maxlenratio: float = 0.0
    minlenratio: float = 0.0

    def most(self, frames: int) -> int:
        """Most tokens."""
        if self.maxlenratio == 0:
            return frames
        if self.maxlenratio < 0:
            return -int(self.maxlenratio)
        return max(1, int(self.maxlenratio * frames))

    def least(self, frames: int) -> int:
        """Fewest tokens."""
        return -int(self.minlenratio) if self.minlenratio < 0 else int(self.minlenratio * frames)


AS_MANY_AS_FRAMES = LengthLimits()
Limits = LengthLimits | Sequence[LengthLimits]


def for_each(limits: Limits, num_utterances: int) -> list[LengthLimits]:
    """Of U utterances, where one may stand for all."""
    if isinstance(limits, LengthLimits):
        return [limits] * num_utterances
    return [*limits]
