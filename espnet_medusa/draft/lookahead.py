"""How far to draft next: as far as drafts of this utterance stand, or as far as it pays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from espnet_medusa.search.walk import Draft, Walk

FORGETTING = 0.98  # share of what was known that stays when something is measured again
EXPECTED, TRIALS = 0.7, 3.0  # acceptance that is taken for granted, as if of so many drafts
USUAL = 0.9  # share of an average that stays with one more
SPREAD = 0.1  # variance of depths, in steps, below which costs say nothing of a step


class Lookahead(ABC):
    """Chooses each utterance's depth before each draft; what it has learnt serves the next ones.

    Args:
        least: Bound below.
        most: Bound above.
    """

    def __init__(self, least: int, most: int):
        self.least, self.most = least, most

    @abstractmethod
    def depth(self, walk: Walk) -> int:
        """Steps to run ahead; ``walk.draft`` is the last draft, with what came of it, if any."""

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

    An utterance begins where the others have been on average.

    Args:
        least: Bound below.
        most: Bound above.
        first: Where the first one begins.
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
        self.raise_above, self.lower_below = raise_above, lower_below
        self.usual = float(first)

    def depth(self, walk: Walk) -> int:
        last: Draft | None = walk.draft
        if last is None or last.limit is None:
            return self.bounded(round(self.usual))
        if not last.depth:
            return last.limit
        share = last.accepted / last.depth
        change = (share > self.raise_above) - (share < self.lower_below)
        depth = self.bounded(last.limit + change)
        self.usual += (1 - USUAL) * (depth - self.usual)
        return depth


class ByCost(Lookahead):
    """The depth of most expected tokens a second, from measured costs.

    With acceptance p of a step behind accepted ones, a call with K drafted steps gives
    1 + p + ... + p^K tokens (Leviathan et al., arXiv 2211.17192, eq. 1). p is this utterance's, to
    begin with that of the others. Seconds of an iteration are a line over its steps: so a step
    costs what drafting it costs, and what the decoder pays for one node more. Where no depth pays,
    each utterance drafts one step once, to see whether that is still so.
    """

    def __init__(self, least: int, most: int):
        super().__init__(least, most)
        self.costs = Line()
        self.step_seconds = 0.0
        self.accepted, self.tried = EXPECTED * TRIALS, TRIALS

    def measure(self, call_seconds: float, draft_seconds: float, steps: int) -> None:
        self.costs.add(steps, call_seconds + draft_seconds)
        if steps:
            known = self.step_seconds or draft_seconds / steps
            self.step_seconds = FORGETTING * known + (1 - FORGETTING) * draft_seconds / steps

    def depth(self, walk: Walk) -> int:
        last: Draft | None = walk.draft
        if last is not None and last.depth:
            self.accepted = FORGETTING * self.accepted + last.accepted
            self.tried = FORGETTING * self.tried + min(last.accepted + 1, last.depth)
        if not self.step_seconds:
            return self.bounded((self.least + self.most) // 2)
        expected = min(self.accepted / self.tried, 1.0)
        share = step_acceptance(sum(walk.statistics.accepted), walk.tried, expected)
        step = max(self.costs.slope, self.step_seconds)
        call = max(self.costs.mean - step * self.costs.place, step)
        best, depth, tokens = 0.0, self.least, 0.0
        for steps in range(self.most + 1):
            tokens += share**steps
            rate = tokens / (call + steps * step)
            if steps >= self.least and rate > best:
                best, depth = rate, steps
        return depth if last is not None else max(depth, min(1, self.most))


@dataclass
class Line:
    """A line through points, the late ones above all.

    Attributes:
        weight: Of all points so far.
        place, mean: Their average.
        variance: Of places.
        covariance: Of places and values.
    """

    weight: float = 0.0
    place: float = 0.0
    mean: float = 0.0
    variance: float = 0.0
    covariance: float = 0.0

    def add(self, place: float, value: float) -> None:
        """One point more (weighted incremental algorithm of West, 1979)."""
        self.weight = FORGETTING * self.weight + 1
        share = 1 / self.weight
        across, along = place - self.place, value - self.mean
        self.place += share * across
        self.mean += share * along
        self.variance = (1 - share) * (self.variance + share * across * across)
        self.covariance = (1 - share) * (self.covariance + share * across * along)

    @property
    def slope(self) -> float:
        """Of the line; 0 where the points stand above each other."""
        return self.covariance / self.variance if self.variance > SPREAD else 0.0


def step_acceptance(accepted: int, tried: int, expected: float = EXPECTED) -> float:
    """How often a drafted step behind accepted ones is accepted, in (0, 1).

    Args:
        accepted: Steps that were.
        tried: Steps that could have been.
        expected: What is believed before.
    """
    return (accepted + expected * TRIALS) / (max(tried, accepted) + TRIALS)
