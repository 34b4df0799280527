"""Drafting is the search itself, run ahead on a surrogate's log-probabilities.

Every prefix that the run-ahead visits goes into the next decoder call. Width 1 gives Medusa's
chain, wider gives candidate trees that shape themselves, and for beam search the drafted beam.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from espnet_medusa.draft.surrogate import Surrogate
from espnet_medusa.prefix import Prefix
from espnet_medusa.search.scores import CANDIDATES, Candidates, Request
from espnet_medusa.search.walk import Draft, Hypothesis, Strategy, Walk, best_continuations


@dataclass(frozen=True)
class DraftShape:
    """How far and how wide to draft.

    Attributes:
        depth: Steps to run ahead; 0 drafts nothing.
        width: Hypotheses of the drafted beam.
        budget: Most nodes of one utterance in a decoder call; None without limit.
        choices: Fixed shape instead of the drafted beam: how many of the best tokens hang behind
            every node of each depth (aiola's ``medusa_choices`` without the root).
        left_out: Scorers that are not asked while running ahead.
    """

    depth: int
    width: int = 1
    budget: int | None = None
    choices: tuple[int, ...] | None = None
    left_out: frozenset[str] = frozenset()


PLAIN = DraftShape(depth=0)


class RunAhead:
    """Drafts for all walks at once.

    Args:
        strategy: The search that is run ahead.
        surrogate: Stands in for the decoder; None drafts nothing.
        shape: How far and how wide.
    """

    def __init__(self, strategy: Strategy, surrogate: Surrogate | None, shape: DraftShape):
        self.strategy = strategy
        self.surrogate = surrogate
        self.shape = shape

    def draft(self, walks: Sequence[Walk]) -> None:
        """Set each walk's ``draft``: its unevaluated hypotheses and what may follow them."""
        states = SurrogateStates(self.surrogate)
        for walk in walks:
            walk.draft = Draft(list(walk.running))
            self._collect(walk)
        for step in range(self.shape.depth):
            going = [walk for walk in walks if walk.draft.beam]
            if not going:
                break
            self._step(going, states, step)
        for walk in walks:
            self._keep_budget(walk)

    def _step(self, walks: Sequence[Walk], states: "SurrogateStates", step: int) -> None:
        """Run one step ahead, all walks together."""
        candidates = self._candidates(walks, states)
        for walk in walks:
            beam = walk.draft.beam
            rows = [candidates[hypothesis.prefix] for hypothesis in beam]
            if self.shape.choices is not None:
                walk.draft.beam = _best_of_each(beam, rows, self.shape.choices[step])
            else:
                walk.draft.beam = best_continuations(
                    beam, rows, self.shape.width, self.strategy.scoring.eos
                )
            walk.draft.depth += 1
            self._collect(walk)

    def _collect(self, walk: Walk) -> None:
        """Note the beam's unevaluated prefixes, let go of those that nothing may follow."""
        draft, going = walk.draft, []
        for hypothesis in draft.beam:
            prefix = hypothesis.prefix
            if prefix.length >= walk.max_length:
                continue
            if prefix.token == self.strategy.scoring.eos and prefix.parent is not None:
                draft.ends[prefix] = hypothesis.score
                continue
            going.append(hypothesis)
            if not prefix.evaluated:
                draft.nodes[prefix] = hypothesis.score
        draft.beam = going

    def _candidates(
        self, walks: Sequence[Walk], states: "SurrogateStates"
    ) -> dict[Prefix, Candidates]:
        """What follows the beams: the decoder's word where it is known, else the surrogate's."""
        scoring, found = self.strategy.scoring, {}
        known, drafted = [], []
        for walk in walks:
            prefixes = [hypothesis.prefix for hypothesis in walk.draft.beam]
            for requests, evaluated in ((known, True), (drafted, False)):
                some = [prefix for prefix in prefixes if prefix.evaluated == evaluated]
                if some:
                    requests.append(Request(walk.scorers, some))
        scoring.find_candidates(known, self.strategy.width)
        for request in known:
            found |= {prefix: prefix.memo[CANDIDATES] for prefix in request.prefixes}
        prefixes = [prefix for request in drafted for prefix in request.prefixes]
        if prefixes:
            logits = self.surrogate.logits(states.of(prefixes))
            rows = scoring.candidates(
                drafted, scoring.log_probs(drafted, logits), self._width, self.shape.left_out
            )
            found |= dict(zip(prefixes, rows, strict=True))
        return found

    @property
    def _width(self) -> int:
        return max(self.shape.width, *(self.shape.choices or ()), self.strategy.width)

    def _keep_budget(self, walk: Walk) -> None:
        """Leave out the least promising drafts; what the search waits for stays."""
        draft, budget = walk.draft, self.shape.budget
        if budget is None or len(draft.nodes) <= budget:
            return
        waiting = sum(not hypothesis.prefix.evaluated for hypothesis in walk.running)
        nodes = [*draft.nodes]
        drafted = nodes[waiting:]
        if self.strategy.best_first:
            drafted.sort(key=draft.nodes.get, reverse=True)
        kept = {*nodes[:waiting], *drafted[: max(budget - waiting, 0)]}
        draft.nodes = {prefix: score for prefix, score in draft.nodes.items() if prefix in kept}


class SurrogateStates:
    """A surrogate's states during one drafting, each worked out once.

    Args:
        surrogate: Makes them.
    """

    def __init__(self, surrogate: Surrogate | None):
        self.surrogate = surrogate
        self.states: dict[Prefix, Any] = {}

    def of(self, prefixes: Sequence[Prefix]) -> list[Any]:
        """States of prefixes whose parents are evaluated or have states."""
        missing = [prefix for prefix in prefixes if prefix not in self.states]
        if missing:
            self._start([prefix.parent for prefix in missing if prefix.parent.evaluated])
            advanced = self.surrogate.advance(
                [self.states[prefix.parent] for prefix in missing],
                [prefix.token for prefix in missing],
            )
            self.states |= zip(missing, advanced, strict=True)
        return [self.states[prefix] for prefix in prefixes]

    def _start(self, prefixes: Sequence[Prefix]) -> None:
        missing = [*dict.fromkeys(p for p in prefixes if p not in self.states)]
        if missing:
            self.states |= zip(missing, self.surrogate.start(missing), strict=True)


def _best_of_each(
    beam: Sequence[Hypothesis], candidates: Sequence[Candidates], count: int
) -> list[Hypothesis]:
    """The ``count`` best continuations of each hypothesis."""
    return [
        Hypothesis(hypothesis.prefix.child(token), hypothesis.score + gain)
        for hypothesis, row in zip(beam, candidates, strict=True)
        for token, gain in zip(row.tokens[:count], row.gains[:count], strict=True)
        if gain > -math.inf
    ]
