"""How far to draft next: as far as drafts of this utterance stand, or as far as it pays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from espnet_medusa.search.walk import Draft, Walk

FORGETTING = 0.9  # share of what was known of a cost that stays when it is measured again
EXPECTED, TRIALS = 0.7, 3.0  # acceptance that is taken for granted, as if of so many drafts


class Lookahead(ABC):
    """Chooses each utterance's depth before each draft.

    Args:
        least: Bound below.
        most: Bound above.
    """

    def __init__(self, least: int, most: int):
        self.least, self.most = least, most

    @abstractmethod
    def depth(self, walk: Walk) -> int:
        """Steps to run ahead; ``walk.draft`` is the last draft, with what came of it."""

    def measure(self, call_seconds: float, draft_seconds: float, steps: int) -> None:
        """Take note of what an iteration has cost.

        Args:
            call_seconds: The decoder call and walking on.
            draft_seconds: Drafting before that call.
            steps: That were run ahead.
        """
        return

    def bounded(self, depth: int) -> int:
        """The nearest depth that is allowed."""
        return min(max(depth, self.least), self.most)


class ByAcceptance(Lookahead):
    """One step more after a draft that mostly stood, one less after one that mostly did not.

    Args:
        least: Bound below.
        most: Bound above.
        first: Where to begin.
        raise_above: Share of accepted steps above which it goes up.
        lower_below: Share below which it goes down.
    """

    def __init__(
        self,
        least: int,
        most: int,
        first: int = 5,
        raise_above: float = 0.8,
        lower_below: float = 0.3,
    ):
        super().__init__(least, most)
        self.first, self.raise_above, self.lower_below = first, raise_above, lower_below

    def depth(self, walk: Walk) -> int:
        last: Draft = walk.draft
        if last.limit is None:
            return self.bounded(self.first)
        if not last.depth:
            return last.limit
        share = last.accepted / last.depth
        change = (share > self.raise_above) - (share < self.lower_below)
        return self.bounded(last.limit + change)


class ByCost(Lookahead):
    """The depth of most expected tokens a second, from measured costs.

    With acceptance p of a step behind accepted ones, a call with K drafted steps gives
    1 + p + ... + p^K tokens (Leviathan et al., arXiv 2211.17192, eq. 1). p is this utterance's, the
    seconds are those of all calls so far, late ones above all.
    """

    def __init__(self, least: int, most: int):
        super().__init__(least, most)
        self.call_seconds: float | None = None
        self.step_seconds: float | None = None

    def measure(self, call_seconds: float, draft_seconds: float, steps: int) -> None:
        self.call_seconds = _blend(self.call_seconds, call_seconds)
        if steps:
            self.step_seconds = _blend(self.step_seconds, draft_seconds / steps)

    def depth(self, walk: Walk) -> int:
        if self.call_seconds is None or self.step_seconds is None:
            return self.bounded((self.least + self.most) // 2)
        share = step_acceptance(sum(walk.statistics.accepted), walk.tried)
        best, depth, tokens = 0.0, self.least, 0.0
        for steps in range(self.most + 1):
            tokens += share**steps
            rate = tokens / (self.call_seconds + steps * self.step_seconds)
            if steps >= self.least and rate > best:
                best, depth = rate, steps
        return depth


def step_acceptance(accepted: int, tried: int) -> float:
    """How often a drafted step behind accepted ones is accepted, in (0, 1)."""
    return (accepted + EXPECTED * TRIALS) / (max(tried, accepted) + TRIALS)


def _blend(known: float | None, seconds: float) -> float:
    return seconds if known is None else FORGETTING * known + (1 - FORGETTING) * seconds
