"""The window of encoder frames of each step's CTC prefix scores, as in ESPnet 202611.

ESPnet's option ``ctc_window_margin``: CTC scores continuations over frames around those that the
hypotheses of the beam have reached. The window depends on all of these hypotheses, and on earlier
windows, because it never moves back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from espnet_medusa.decoding.tree.prefix import CTCState

WINDOW_LABELS = 5  # least number of frames with a nonblank best label after the beam, if there are


@dataclass(eq=False, slots=True)
class Window:
    """Frames ``start`` to ``end`` - 1 of a step; equal windows after the same steps are one object.

    So scores of a prefix depend on its tokens and its window object alone.
    """

    start: int
    end: int
    earliest: int = 0  # first frame that a hypothesis has reached: ESPnet's ``f_min``
    latest: int = 1  # last such frame: ``f_max``
    next_windows: dict[tuple[int, int], Window] = field(default_factory=dict)  # by these frames


class CTCWindows:
    """Computes the windows of an utterance with log-probabilities (T, V) of the CTC branch."""

    def __init__(self, log_probs: torch.Tensor, blank: int, margin: int):
        self.log_probs, self.blank, self.margin = log_probs, blank, margin
        self.first = Window(0, 0)  # precedes that of the first step

    def after(self, window: Window | None, states: Sequence[CTCState], labels: int) -> Window:
        """Return the window of a step from the states of its hypotheses.

        ``window`` is that of the step before, None at the first step; ``labels`` is the number of
        labels of each hypothesis.
        """
        before = self.first if window is None else window
        # A hypothesis has reached the frame at which its probability is highest; of equal frames,
        # the first. In ESPnet's precision, mostly float32, equal frames are frequent.
        totals = torch.stack([state.total for state in states]).to(self.log_probs.dtype)
        reached = totals.argmax(dim=-1).tolist()
        earliest, latest = max(min(reached), before.earliest), max(*reached, before.latest)
        found = before.next_windows.get((earliest, latest))
        if found is None:
            start = min(before.latest, max(earliest - self.margin, labels, 1))
            found = Window(start, self._end(latest), earliest, latest)
            before.next_windows[earliest, latest] = found
        return found

    def _end(self, latest: int) -> int:
        """Return the frame after the window, which is longer if it contains a silence."""
        frames, end = len(self.log_probs), latest + self.margin + 1
        if end >= frames:
            return frames
        reached = bisect_left(self._label_counts, self._label_counts[latest] + WINDOW_LABELS)
        return max(end, min(reached, frames - 1) + 1)

    @cached_property
    def _label_counts(self) -> list[int]:
        """For each frame, the number of frames up to it whose best label is not blank."""
        return (self.log_probs.argmax(dim=-1) != self.blank).cumsum(0).tolist()
