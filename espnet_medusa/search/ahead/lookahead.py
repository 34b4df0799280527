"""How far to draft next: as far as drafts of this utterance stand, or as far as it pays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from espnet_medusa.search.state import Draft, SearchState

FORGETTING = 0.98  # share of what was known that stays when something is measured again
EXPECTED, TRIALS = 0.7, 3.0  # acceptance that is taken for granted, as if of so many drafts
USUAL = 0.9  # share of an average that stays with one more
SPREAD = 0.1  # variance of depths, in steps, below which costs say nothing of a step
LEAST_CALL = 0.1  # share of an iteration that is the call's, whatever the fit says


class Lookahead(ABC):
    """Chooses each utterance's depth before each draft; what it has learnt serves the next ones.

    Args:
        least: Bound below.
        most: Bound above.
    """

    def __init__(self, least: int, most: int):
        self.least, self.most = least, most

    @abstractmethod
    def depth(self, state: SearchState) -> int:
        """Steps to run ahead; ``state.draft`` is the last draft, with what came of it, if any."""

    def measure(self, call_seconds: float, draft_seconds: float, steps: int, tokens: float) -> None:
        """Take note of what an iteration has cost.

        Args:
            call_seconds: The decoder call and walking on.
            draft_seconds: Drafting before that call.
            steps: That were run ahead.
            tokens: That each utterance wrote.
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

    def depth(self, state: SearchState) -> int:
        last: Draft | None = state.draft
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

    A call with K drafted steps gives 1 + p_1 + p_1 p_2 + ... tokens, where p_k is how often the
    k-th step stands behind steps that do (Leviathan et al., arXiv 2211.17192, eq. 1, have one p for
    all; but what CTC has wrong shows at its first step). It is learnt from all utterances, where
    few went so far from all steps. Where no depth pays, each utterance drafts one step once, to see
    whether that is still so.
    """

    def __init__(self, least: int, most: int):
        super().__init__(least, most)
        self.costs = Costs()
        self.stood, self.tried = [0.0] * most, [0.0] * most

    def measure(self, call_seconds: float, draft_seconds: float, steps: int, tokens: float) -> None:
        self.costs.add(call_seconds, draft_seconds, steps, tokens)

    def depth(self, state: SearchState) -> int:
        last: Draft | None = state.draft
        if last is not None:
            self._learn(last)
        if not self.costs.drafted:
            return self.bounded((self.least + self.most) // 2)
        of_call, of_step, of_token = self.costs.seconds()
        usual = step_acceptance(sum(self.stood), sum(self.tried))
        best, depth, tokens, reached = 0.0, self.least, 0.0, 1.0
        for steps in range(self.most + 1):
            if steps:
                seen = self.stood[steps - 1], self.tried[steps - 1]
                reached *= step_acceptance(*seen, usual)
            tokens += reached
            rate = tokens / (of_call + steps * of_step + tokens * of_token)
            if steps >= self.least and rate > best:
                best, depth = rate, steps
        return depth if state.statistics.drafted else max(depth, min(1, self.most))

    def _learn(self, last: Draft) -> None:
        """Which of the steps stood that had the chance to."""
        for step in range(min(last.accepted + 1, last.depth, self.most)):
            self.stood[step] = FORGETTING * self.stood[step] + (step < last.accepted)
            self.tried[step] = FORGETTING * self.tried[step] + 1


class Costs:
    """Seconds of an iteration: so much each, for each step run ahead, for each token written.

    Least squares over what was measured, late ones above all. A step costs what drafting it costs,
    and what the decoder pays for one node more.
    """

    def __init__(self):
        self.products, self.sums = np.zeros((3, 3)), np.zeros(3)
        self.drafted = 0.0  # seconds of drafting a step, its share of the whole draft

    def add(self, call_seconds: float, draft_seconds: float, steps: int, tokens: float) -> None:
        """An iteration more; arguments as ``Lookahead.measure``'s."""
        sizes = np.array([1.0, steps, tokens])
        self.products = FORGETTING * self.products + np.outer(sizes, sizes)
        self.sums = FORGETTING * self.sums + (call_seconds + draft_seconds) * sizes
        if steps:
            known = self.drafted or draft_seconds / steps
            self.drafted = FORGETTING * known + (1 - FORGETTING) * draft_seconds / steps

    def seconds(self) -> tuple[float, float, float]:
        """Of a call, a step and a token."""
        weight = self.products[0, 0]
        mean, places = self.sums[0] / weight, self.products[0, 1:] / weight
        spread = self.products[1:, 1:] / weight - np.outer(places, places)
        along = self.sums[1:] / weight - mean * places
        slopes = np.linalg.solve(spread + SPREAD * np.eye(2), along).clip(min=0.0)
        if spread[0, 0] < SPREAD:  # always as deep: nothing tells what a step costs the decoder
            slopes[0] = self.drafted
        call = max(mean - float(slopes @ places), LEAST_CALL * mean)
        return call, float(slopes[0]), float(slopes[1])


def step_acceptance(accepted: float, tried: float, expected: float = EXPECTED) -> float:
    """How often a drafted step behind accepted ones is accepted, in (0, 1).

    Args:
        accepted: Steps that were.
        tried: Steps that could have been.
        expected: What is believed before.
    """
    return (accepted + expected * TRIALS) / (max(tried, accepted) + TRIALS)
