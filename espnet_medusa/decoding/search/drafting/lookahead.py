"""Depth and width of drafts, and a depth that adapts to acceptance."""

from __future__ import annotations

import math
from dataclasses import dataclass

from espnet_medusa.decoding.search.drafting.auto_depth import AutoDepth
from espnet_medusa.decoding.search.state import Draft, SearchState

RAISE_ABOVE, LOWER_BELOW = 0.8, 0.3  # shares of accepted steps that change the depth
MEAN_DECAY = 0.9  # of the exponential moving average of depths


@dataclass(frozen=True)
class DraftShape:
    """Size of drafts."""

    depth: int  # steps to draft ahead; 0: without drafts
    width: int = 1  # hypotheses of the drafted beam
    budget: int | None = None  # maximum nodes per utterance in a decoder call; None: no limit
    min_probability: float = 0.0  # drafts end before their probability (the drafter's) is lower
    # A fixed tree instead of the drafted beam: number of children of every node of each depth
    # (Whisper-Medusa's ``medusa_choices`` without the root).
    choices: tuple[int, ...] | None = None
    # Chooses the depth, at most ``depth``; None: always ``depth``.
    lookahead: ByAcceptance | AutoDepth | None = None

    @property
    def min_log_prob(self) -> float:
        """Logarithm of ``min_probability``."""
        return math.log(self.min_probability) if self.min_probability > 0 else -math.inf


NO_DRAFTS = DraftShape(depth=0)


class ByAcceptance:
    """Drafts one step more after a mostly accepted draft, one less after a mostly rejected one.

    Depths are from ``least`` to ``most``. The first utterance starts at depth ``first``, the next
    ones at the mean depth so far.
    """

    def __init__(self, least: int, most: int, first: int = 5):
        self.least, self.most, self.usual = least, most, float(first)

    def depth(self, state: SearchState) -> int:
        """Return how many steps to draft; ``state.draft`` is the last draft and its acceptance."""
        last: Draft | None = state.draft
        if last is None or last.limit == math.inf:
            return self._bounded(round(self.usual))
        if not last.depth:
            return last.limit
        share = last.accepted_steps / last.depth
        depth = self._bounded(last.limit + (share > RAISE_ABOVE) - (share < LOWER_BELOW))
        self.usual += (1 - MEAN_DECAY) * (depth - self.usual)
        return depth

    def _bounded(self, depth: int) -> int:
        return min(max(depth, self.least), self.most)
