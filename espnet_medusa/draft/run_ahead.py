"""Drafting is the search itself, run ahead on a surrogate's log-probabilities.

Every prefix that the run-ahead visits goes into the next decoder call. Width 1 gives Medusa's
chain, wider gives candidate trees that shape themselves, and for beam search the drafted beam.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from espnet_medusa.draft.decoder_steps import DecoderSteps
from espnet_medusa.draft.scorer_steps import ScorerSteps
from espnet_medusa.draft.shape import DraftShape
from espnet_medusa.search.walk import Draft, Strategy, Walk

if TYPE_CHECKING:
    from espnet_medusa.draft.surrogate import Surrogate


class RunAhead:
    """Drafts for all walks at once.

    Args:
        strategy: The search that is run ahead.
        surrogate: Stands in for the decoder; None drafts nothing.
        shape: How far and how wide.
    """

    def __init__(self, strategy: Strategy, surrogate: Surrogate | None, shape: DraftShape):
        self.strategy, self.surrogate, self.shape = strategy, surrogate, shape
        self.steps = None
        if surrogate is not None and shape.depth > 0:
            scoring = strategy.scoring.for_drafts(shape.left_out, surrogate.vocabulary)
            kind = DecoderSteps if scoring.decoder_alone else ScorerSteps
            self.steps = kind(strategy, scoring, surrogate, shape)

    def draft(self, walks: Sequence[Walk]) -> None:
        """Set each walk's ``draft``: its unevaluated hypotheses and what may follow them."""
        for walk in walks:
            walk.draft = Draft([])
            walk.draft.visit(walk.running, walk.max_length, self.strategy.scoring.eos)
        if self.steps is not None:
            self.steps.run([walk for walk in walks if walk.draft.beam])
        for walk in walks:
            self._keep_budget(walk)

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
