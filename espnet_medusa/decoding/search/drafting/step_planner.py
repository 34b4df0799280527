"""Drafting: the search continues with a proposer's log-probabilities instead of the decoder's.

The next decoder call evaluates every prefix that the draft visits. Width 1 results in Medusa's
chain; larger widths result in candidate trees, or for beam search in a drafted beam.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

from espnet_medusa.decoding.search.drafting.auto_depth import AutoDepth
from espnet_medusa.decoding.search.drafting.decoder_steps import DecoderSteps
from espnet_medusa.decoding.search.drafting.lookahead import NO_DRAFTS, DraftShape
from espnet_medusa.decoding.search.drafting.steps import ScorerSteps, Steps
from espnet_medusa.decoding.search.state import Draft, SearchState, Strategy, prompt_draft
from espnet_medusa.decoding.tree.depth_plan import DepthPlan
from espnet_medusa.decoding.tree.proposer import DraftContext, Proposer


class StepPlanner:
    """Plans the nodes of each decoder call: hypotheses and, if there is a proposer, drafts."""

    def __init__(self, strategy: Strategy, proposer: Proposer | None, shape: DraftShape):
        self.strategy = copy.copy(strategy)
        self.strategy.width = max(strategy.own_width, shape.width)  # for the drafted beam
        self.proposer, self.shape, self.lookahead = proposer, shape, shape.lookahead
        self.steps: Steps | None = None
        self.plan: DepthPlan | None = None  # of a batch, if the depth is chosen by measured seconds
        if proposer is not None and shape.depth > 0:
            scoring = strategy.scoring.for_drafts(proposer.vocabulary)
            kind = DecoderSteps if scoring.decoder_alone else ScorerSteps
            self.steps = kind(self.strategy, scoring, proposer, shape)

    @property
    def needs_head_input(self) -> bool:
        """Whether the planner drafts from the decoder's head input."""
        return self.steps is not None and self.proposer.needs_head_input

    @property
    def scores_drafts(self) -> bool:
        """Whether the scores of drafts are log-probabilities."""
        return self.steps is None or self.steps.normalized

    def planned(self, utterances: int) -> StepPlanner:
        """Return the planner for so many utterances, with its plan of depths if it needs one."""
        if self.steps is None or not isinstance(self.shape.lookahead, AutoDepth):
            return self
        planned = copy.copy(self)
        planned.plan = self.shape.lookahead.plan(utterances)
        if not planned.plan.most:
            planned.proposer, planned.steps, planned.shape = None, None, NO_DRAFTS
        return planned

    def learn(self, states: Sequence[SearchState]) -> None:
        """Record the seconds and acceptance of a search, which has ended."""
        if self.plan is not None:
            self.lookahead.learn(self.plan, [state.statistics for state in states])

    def begin(self, context: DraftContext) -> StepPlanner:
        """Return the planner for one batch of utterances."""
        if self.steps is None:
            return self
        begun = copy.copy(self)
        begun.proposer, begun.steps = self.proposer.begin(context), copy.copy(self.steps)
        begun.steps.proposer, begun.steps.device = begun.proposer, context.device
        return begun

    def draft_prompt(self, states: Sequence[SearchState]) -> None:
        """Set each state's first ``draft`` to its prompt and drafted continuations."""
        forced = self.strategy.scoring.constraints.forced_prefix
        early = None if self.steps is None else self.proposer.early
        steps = None
        if early is not None:
            steps = copy.copy(self.steps)
            steps.proposer = early
        self._draft(states, [prompt_draft(state, forced) for state in states], steps)

    def draft(self, states: Sequence[SearchState]) -> None:
        """Set each state's ``draft`` to its unevaluated hypotheses and drafted continuations."""
        self._draft(states, [Draft([]) for _ in states], self.steps)

    def _draft(
        self, states: Sequence[SearchState], drafts: Sequence[Draft], steps: Steps | None
    ) -> None:
        """Extend the drafts by steps, if any, and assign them to the states."""
        planned = None if self.plan is None else self.plan.begin_call(len(states))
        for state, draft in zip(states, drafts, strict=True):
            draft.limit = self._limit(state) if planned is None else planned
            draft.visit(state.running, state.max_length, self.strategy.scoring.eos)
            state.draft = draft
        if steps is not None:
            self.proposer.keep([h.prefix for state in states for h in state.running])
            drafts = steps.proposer.drafts
            steps.run([state for state in states if state.draft.beam and drafts(state.root)])
            count_cost(self.proposer, states)
        for state in states:
            self._apply_budget(state)

    def _limit(self, state: SearchState) -> float:
        return math.inf if self.lookahead is None else self.lookahead.depth(state)

    def _apply_budget(self, state: SearchState) -> None:
        """Drop drafts over the budget, but no unevaluated hypotheses of the search."""
        draft, budget = state.draft, self.shape.budget
        if budget is None or len(draft.nodes) <= budget:
            return
        needed = sum(not hypothesis.prefix.evaluated for hypothesis in state.running)
        nodes = [*draft.nodes]
        drafted = nodes[needed:]
        if self.strategy.best_first:
            drafted.sort(key=draft.nodes.get, reverse=True)
        chosen = {*nodes[:needed], *drafted[: max(budget - needed, 0)]}
        draft.nodes = {prefix: score for prefix, score in draft.nodes.items() if prefix in chosen}


def count_cost(proposer: Proposer, states: Sequence[SearchState]) -> None:
    """Copy the proposer's cost so far into the states' statistics."""
    for state in states:
        state.statistics.draft_calls, state.statistics.draft_nodes = proposer.cost(state.root)
