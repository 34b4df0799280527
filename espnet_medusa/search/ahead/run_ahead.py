"""Drafting is the search itself, run ahead on a surrogate's log-probabilities.

Every prefix that the run-ahead visits goes into the next decoder call. Width 1 gives Medusa's
chain, wider gives candidate trees that shape themselves, and for beam search the drafted beam.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from espnet_medusa.search.ahead.decoder_steps import DecoderSteps
from espnet_medusa.search.ahead.scorer_steps import ScorerSteps
from espnet_medusa.search.ahead.shape import DraftShape
from espnet_medusa.search.ahead.steps import Steps
from espnet_medusa.search.walk import Draft, Strategy, Walk, prompt_draft

if TYPE_CHECKING:
    import torch

    from espnet_medusa.tree.surrogate import DraftInput, Surrogate


class Drafted(NamedTuple):
    """When the last draft was done, on a clock in seconds, and how long its steps took."""

    at: float
    seconds: float
    steps: int


class RunAhead:
    """Drafts for all walks at once.

    Args:
        strategy: The search that is run ahead.
        surrogate: Stands in for the decoder; None drafts nothing.
        shape: How far and how wide.
    """

    def __init__(self, strategy: Strategy, surrogate: Surrogate | None, shape: DraftShape):
        self.strategy, self.surrogate, self.shape = strategy, surrogate, shape
        self.steps: Steps | None = None
        self._last: Drafted | None = None
        if surrogate is not None and shape.depth > 0:
            scoring = strategy.scoring.for_drafts(shape.left_out, surrogate.vocabulary)
            kind = DecoderSteps if scoring.decoder_alone else ScorerSteps
            self.steps = kind(strategy, scoring, surrogate, shape)

    @property
    def needs_head_input(self) -> bool:
        """Whether it drafts from what the decoder computes for heads."""
        return self.steps is not None and self.surrogate.needs_head_input

    def begin(
        self,
        walks: Sequence[Walk],
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        draft_inputs: Sequence[DraftInput],
        heard: Any,
    ) -> RunAhead:
        """What drafts for these utterances; arguments as ``Surrogate.begin``'s."""
        if self.steps is None:
            return self
        roots = [walk.root for walk in walks]
        surrogate = self.surrogate.begin(roots, memory, memory_lengths, draft_inputs, heard)
        begun = copy.copy(self)
        begun.surrogate, begun.steps = surrogate, copy.copy(self.steps)
        begun.steps.surrogate, begun.steps.device = surrogate, memory.device
        begun._last = None
        return begun

    def draft_prompt(self, walks: Sequence[Walk]) -> None:
        """Set each walk's first ``draft``: its prompt and what may follow it."""
        forced = self.strategy.scoring.constraints.forced_prefix
        early = None if self.steps is None else self.surrogate.early
        steps = None
        if early is not None:
            steps = copy.copy(self.steps)
            steps.surrogate = early
        self._draft(walks, [prompt_draft(walk, forced) for walk in walks], steps)

    def draft(self, walks: Sequence[Walk]) -> None:
        """Set each walk's ``draft``: its unevaluated hypotheses and what may follow them."""
        self._draft(walks, [Draft([]) for _ in walks], self.steps)

    def _draft(self, walks: Sequence[Walk], drafts: Sequence[Draft], steps: Steps | None) -> None:
        """Prolong the drafts by steps, if any, and hand them to the walks."""
        started, lookahead = time.perf_counter(), self.shape.lookahead
        if lookahead is not None and self._last is not None:
            tokens = 1 + sum(walk.draft.accepted for walk in walks) / len(walks)
            last = self._last
            lookahead.measure(started - last.at, last.seconds, last.steps, tokens)
        for walk, draft in zip(walks, drafts, strict=True):
            draft.limit = None if lookahead is None else lookahead.depth(walk)
            draft.visit(walk.running, walk.max_length, self.strategy.scoring.eos)
            walk.draft = draft
        if steps is not None:
            self.surrogate.keep([h.prefix for walk in walks for h in walk.running])
            steps.run([walk for walk in walks if walk.draft.beam])
            count_cost(self.surrogate, walks)
        for walk in walks:
            self._keep_budget(walk)
        if lookahead is not None:
            ended = time.perf_counter()
            self._last = Drafted(ended, ended - started, max(walk.draft.depth for walk in walks))

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


def count_cost(surrogate: Surrogate, walks: Sequence[Walk]) -> None:
    """What drafting has cost so far goes into the walks' statistics."""
    for walk in walks:
        cost = surrogate.cost(walk.root)
        walk.statistics.draft_calls, walk.statistics.draft_nodes = cost
