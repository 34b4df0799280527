"""Depth and width of drafts; lookaheads adapt the depth to acceptance or cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from espnet_medusa.decoding.search.state import Draft, SearchState

FORGETTING = 0.98  # factor of earlier measurements when a new one is added
EXPECTED, TRIALS = 0.7, 3.0  # prior acceptance rate, and its weight in drafts
RAISE_ABOVE, LOWER_BELOW = 0.8, 0.3  # shares of accepted steps that change the depth
MEAN_DECAY = 0.9  # of the exponential moving average of depths
LEAST_VARIANCE = 0.1  # minimum variance of depths to fit a step's cost; also the regularization
LEAST_CALL = 0.1  # minimum share of a call in the seconds of an iteration


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
    lookahead: Lookahead | None = None  # chooses each draft's depth; None: always ``depth``

    @property
    def min_log_prob(self) -> float:
        """Logarithm of ``min_probability``."""
        return math.log(self.min_probability) if self.min_probability > 0 else -math.inf


NO_DRAFTS = DraftShape(depth=0)


class Lookahead(ABC):
    """Chooses each draft's depth in a range, and learns from earlier drafts of all utterances."""

    def __init__(self, least: int, most: int):
        self.least, self.most = least, most

    @abstractmethod
    def depth(self, state: SearchState) -> int:
        """Return how many steps to draft; ``state.draft`` is the last draft and its acceptance."""

    def measure(self, call_seconds: float, draft_seconds: float, steps: int, tokens: float) -> None:
        """Record an iteration with ``steps`` drafted and, per utterance, ``tokens`` decoded.

        ``call_seconds`` is the duration of the decoder call and of the search's steps.
        """
        return

    def bounded(self, depth: int) -> int:
        return min(max(depth, self.least), self.most)


class ByAcceptance(Lookahead):
    """Drafts one step more after a mostly accepted draft, one less after a mostly rejected one.

    The first utterance starts at depth ``first``, the next ones at the mean depth so far.
    """

    def __init__(self, least: int, most: int, first: int = 5):
        super().__init__(least, most)
        self.usual = float(first)

    def depth(self, state: SearchState) -> int:
        last: Draft | None = state.draft
        if last is None or last.limit == math.inf:
            return self.bounded(round(self.usual))
        if not last.depth:
            return last.limit
        share = last.accepted_steps / last.depth
        depth = self.bounded(last.limit + (share > RAISE_ABOVE) - (share < LOWER_BELOW))
        self.usual += (1 - MEAN_DECAY) * (depth - self.usual)
        return depth


class ByCost(Lookahead):
    """Chooses the depth with the most expected tokens per second, from measured costs.

    A call with K drafted steps gives 1 + p_1 + p_1 p_2 + ... tokens. p_k is the acceptance rate of
    step k if steps 1 to k - 1 are accepted. Leviathan et al. (arXiv 2211.17192, eq. 1) use one rate
    for all steps, but the first step of CTC drafts has most errors. Rates are learned from all
    utterances; the mean over all steps is the prior of rarely reached steps. If no depth is worth
    its cost, each utterance drafts one step once, so that rates are still measured.
    """

    def __init__(self, least: int, most: int):
        super().__init__(least, most)
        self.costs = Costs()
        self.accepted, self.tried = [0.0] * most, [0.0] * most

    def measure(self, call_seconds: float, draft_seconds: float, steps: int, tokens: float) -> None:
        self.costs.add(call_seconds, draft_seconds, steps, tokens)

    def depth(self, state: SearchState) -> int:
        last: Draft | None = state.draft
        if last is not None:  # Count accepted steps, and steps that were reached.
            for step in range(min(last.accepted_steps + 1, last.depth, self.most)):
                self.accepted[step] = FORGETTING * self.accepted[step] + (
                    step < last.accepted_steps
                )
                self.tried[step] = FORGETTING * self.tried[step] + 1
        if not self.costs.drafted:
            return self.bounded((self.least + self.most) // 2)
        of_call, of_step, of_token = self.costs.seconds()
        usual = step_acceptance(sum(self.accepted), sum(self.tried))
        best, depth, tokens, reached = 0.0, self.least, 0.0, 1.0
        for steps in range(self.most + 1):
            if steps:
                reached *= step_acceptance(self.accepted[steps - 1], self.tried[steps - 1], usual)
            tokens += reached
            rate = tokens / (of_call + steps * of_step + tokens * of_token)
            if steps >= self.least and rate > best:
                best, depth = rate, steps
        return depth if state.statistics.drafted else max(depth, min(1, self.most))


class Costs:
    """Seconds of an iteration as a linear function of drafted steps and decoded tokens.

    A least squares fit with larger weights for later measurements. The cost of a step includes
    drafting it and the decoder's cost of one more node.
    """

    def __init__(self):
        self.products, self.sums = np.zeros((3, 3)), np.zeros(3)
        self.drafted = 0.0  # seconds of drafting per step

    def add(self, call_seconds: float, draft_seconds: float, steps: int, tokens: float) -> None:
        """Add an iteration; arguments as in ``Lookahead.measure``."""
        sizes = np.array([1.0, steps, tokens])
        self.products = FORGETTING * self.products + np.outer(sizes, sizes)
        self.sums = FORGETTING * self.sums + (call_seconds + draft_seconds) * sizes
        if steps:
            known = self.drafted or draft_seconds / steps
            self.drafted = FORGETTING * known + (1 - FORGETTING) * draft_seconds / steps

    def seconds(self) -> tuple[float, float, float]:
        """Return the seconds per call, step and token."""
        weight = self.products[0, 0]
        mean, places = self.sums[0] / weight, self.products[0, 1:] / weight
        spread = self.products[1:, 1:] / weight - np.outer(places, places)
        along = self.sums[1:] / weight - mean * places
        slopes = np.linalg.solve(spread + LEAST_VARIANCE * np.eye(2), along).clip(min=0.0)
        if spread[0, 0] < LEAST_VARIANCE:  # constant depth: only drafting is known per step
            slopes[0] = self.drafted
        call = max(mean - float(slopes @ places), LEAST_CALL * mean)
        return call, float(slopes[0]), float(slopes[1])


def step_acceptance(accepted: float, tried: float, expected: float = EXPECTED) -> float:
    """Estimate the acceptance rate of a step in (0, 1) from counts of the step."""
    return (accepted + expected * TRIALS) / (max(tried, accepted) + TRIALS)
