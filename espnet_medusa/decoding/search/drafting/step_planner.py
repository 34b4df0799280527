"""Drafting: the search continues with a proposer's log-probabilities instead of the decoder's.

The next decoder call evaluates every prefix that the draft visits. Width 1 results in Medusa's
chain; larger widths result in candidate trees, or for beam search in a drafted beam.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence

from espnet_medusa.decoding.search.drafting.decoder_steps import DecoderSteps
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.drafting.steps import ScorerSteps, Steps
from espnet_medusa.decoding.search.state import Draft, SearchState, Strategy, prompt_draft
from espnet_medusa.decoding.tree.proposer import DraftContext, Proposer


class StepPlanner:
    """Plans the nodes of each decoder call: hypotheses and, if there is a proposer, drafts."""

    def __init__(self, strategy: Strategy, proposer: Proposer | None, shape: DraftShape):
        self.strategy = copy.copy(strategy)
        self.strategy.width = max(strategy.own_width, shape.width)  # for the drafted beam
        self.proposer, self.shape = proposer, shape
        self.steps: Steps | None = None
        # Of the last draft: end time and duration in seconds, and number of steps.
        self._last: tuple[float, float, int] | None = None
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

    def begin(self, context: DraftContext) -> StepPlanner:
        """Return the planner for one batch of utterances."""
        if self.steps is None:
            return self
        begun = copy.copy(self)
        begun.proposer, begun.steps = self.proposer.begin(context), copy.copy(self.steps)
        begun.steps.proposer, begun.steps.device = begun.proposer, context.device
        begun._last = None
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
        started, lookahead = time.perf_counter(), self.shape.lookahead
        if lookahead is not None and self._last is not None:
            tokens = 1 + sum(state.draft.accepted_steps for state in states) / len(states)
            before, seconds, steps_before = self._last
            lookahead.measure(started - before, seconds, steps_before, tokens)
        for state, draft in zip(states, drafts, strict=True):
            draft.limit = math.inf if lookahead is None else lookahead.depth(state)
            draft.visit(state.running, state.max_length, self.strategy.scoring.eos)
            state.draft = draft
        if steps is not None:
            self.proposer.keep([h.prefix for state in states for h in state.running])
            drafts = steps.proposer.drafts
            steps.run([state for state in states if state.draft.beam and drafts(state.root)])
            count_cost(self.proposer, states)
        for state in states:
            self._apply_budget(state)
        if lookahead is not None:
            ended = time.perf_counter()
            depth = max(state.draft.depth for state in states)
            self._last = ended, ended - started, depth

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
