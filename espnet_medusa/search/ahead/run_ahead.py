"""Drafting is the search itself, run ahead on a proposer's log-probabilities.

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
from espnet_medusa.search.state import Draft, SearchState, Strategy, prompt_draft

if TYPE_CHECKING:
    import torch

    from espnet_medusa.tree.proposer import DraftInput, Proposer


class Drafted(NamedTuple):
    """When the last draft was done, on a clock in seconds, and how long its steps took."""

    at: float
    seconds: float
    steps: int


class RunAhead:
    """Drafts for all states at once.

    Args:
        strategy: The search that is run ahead.
        proposer: Stands in for the decoder; None drafts nothing.
        shape: How far and how wide.
    """

    def __init__(self, strategy: Strategy, proposer: Proposer | None, shape: DraftShape):
        self.strategy, self.proposer, self.shape = strategy, proposer, shape
        self.steps: Steps | None = None
        self._last: Drafted | None = None
        if proposer is not None and shape.depth > 0:
            scoring = strategy.scoring.for_drafts(shape.left_out, proposer.vocabulary)
            kind = DecoderSteps if scoring.decoder_alone else ScorerSteps
            self.steps = kind(strategy, scoring, proposer, shape)

    @property
    def needs_head_input(self) -> bool:
        """Whether it drafts from what the decoder computes for heads."""
        return self.steps is not None and self.proposer.needs_head_input

    def begin(
        self,
        states: Sequence[SearchState],
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        draft_inputs: Sequence[DraftInput],
        cross_keys_values: Any,
    ) -> RunAhead:
        """What drafts for these utterances; arguments as ``Proposer.begin``'s."""
        if self.steps is None:
            return self
        roots = [state.root for state in states]
        proposer = self.proposer.begin(
            roots, memory, memory_lengths, draft_inputs, cross_keys_values
        )
        begun = copy.copy(self)
        begun.proposer, begun.steps = proposer, copy.copy(self.steps)
        begun.steps.proposer, begun.steps.device = proposer, memory.device
        begun._last = None
        return begun

    def draft_prompt(self, states: Sequence[SearchState]) -> None:
        """Set each state's first ``draft``: its prompt and what may follow it."""
        forced = self.strategy.scoring.constraints.forced_prefix
        early = None if self.steps is None else self.proposer.early
        steps = None
        if early is not None:
            steps = copy.copy(self.steps)
            steps.proposer = early
        self._draft(states, [prompt_draft(state, forced) for state in states], steps)

    def draft(self, states: Sequence[SearchState]) -> None:
        """Set each state's ``draft``: its unevaluated hypotheses and what may follow them."""
        self._draft(states, [Draft([]) for _ in states], self.steps)

    def _draft(
        self, states: Sequence[SearchState], drafts: Sequence[Draft], steps: Steps | None
    ) -> None:
        """Prolong the drafts by steps, if any, and hand them to the states."""
        started, lookahead = time.perf_counter(), self.shape.lookahead
        if lookahead is not None and self._last is not None:
            tokens = 1 + sum(state.draft.accepted for state in states) / len(states)
            last = self._last
            lookahead.measure(started - last.at, last.seconds, last.steps, tokens)
        for state, draft in zip(states, drafts, strict=True):
            draft.limit = None if lookahead is None else lookahead.depth(state)
            draft.visit(state.running, state.max_length, self.strategy.scoring.eos)
            state.draft = draft
        if steps is not None:
            self.proposer.keep([h.prefix for state in states for h in state.running])
            steps.run([state for state in states if state.draft.beam])
            count_cost(self.proposer, states)
        for state in states:
            self._keep_budget(state)
        if lookahead is not None:
            ended = time.perf_counter()
            self._last = Drafted(ended, ended - started, max(state.draft.depth for state in states))

    def _keep_budget(self, state: SearchState) -> None:
        """Leave out the least promising drafts; what the search waits for stays."""
        draft, budget = state.draft, self.shape.budget
        if budget is None or len(draft.nodes) <= budget:
            return
        waiting = sum(not hypothesis.prefix.evaluated for hypothesis in state.running)
        nodes = [*draft.nodes]
        drafted = nodes[waiting:]
        if self.strategy.best_first:
            drafted.sort(key=draft.nodes.get, reverse=True)
        kept = {*nodes[:waiting], *drafted[: max(budget - waiting, 0)]}
        draft.nodes = {prefix: score for prefix, score in draft.nodes.items() if prefix in kept}


def count_cost(proposer: Proposer, states: Sequence[SearchState]) -> None:
    """What drafting has cost so far goes into the states' statistics."""
    for state in states:
        cost = proposer.cost(state.root)
        state.statistics.draft_calls, state.statistics.draft_nodes = cost
