"""One drafter after the other: a hypothesis drafts while it is followed, else the next drafter."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from espnet_medusa.decoding.draft.alignment import AlignedStates
from espnet_medusa.decoding.draft.text import HypothesisProposer
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import MISSING, DraftContext, DraftCost, Proposer, States


@dataclass(frozen=True)
class CascadeStates(States):
    first: AlignedStates
    steps: torch.Tensor  # (R,) tokens since ``start``
    second: States

    def join(self, others: CascadeStates) -> CascadeStates:
        second, other = self.second, others.second
        if type(second) is not type(other):
            second, other = started(second), started(other)
        first, steps = self.first.join(others.first), torch.cat([self.steps, others.steps])
        return CascadeStates(first, steps, second.join(other))


@dataclass(frozen=True)
class LateStates(States):
    """Prefixes R whose states ``start`` computes if the second drafter drafts."""

    prefixes: list[Prefix]
    start: Callable[[Sequence[Prefix]], States]

    def select(self, rows: torch.Tensor) -> LateStates:
        return replace(self, prefixes=[self.prefixes[row] for row in rows.tolist()])

    def join(self, others: LateStates) -> LateStates:
        return replace(self, prefixes=self.prefixes + others.prefixes)


def started(states: States) -> States:
    return states.start(states.prefixes) if isinstance(states, LateStates) else states


class CascadeProposer(Proposer):
    """Drafts by ``first`` where a prefix still follows its hypothesis, else by ``second``.

    A prefix has left the hypothesis, or passed its end, if its last token does not match. Where it
    matches again, ``first`` goes on. ``second`` drafts at most ``second_depth`` tokens. Work of
    ``second`` is only done if it drafts. Both have the vocabulary of ``second``.
    """

    def __init__(self, first: HypothesisProposer, second: Proposer, second_depth: int):
        self.first, self.second, self.second_depth = first, second, second_depth
        self.vocabulary, self.needs_head_input = second.vocabulary, second.needs_head_input
        self.context: DraftContext | None = None

    @property
    def early(self) -> Proposer:
        return self.first if self.needs_head_input else self

    def begin(self, context: DraftContext) -> CascadeProposer:
        begun = copy.copy(self)
        begun.context, begun.first = context, self.first.begin(context)
        return begun

    @cached_property
    def begun_second(self) -> Proposer:
        return self.second.begin(self.context)

    def start(self, prefixes: Sequence[Prefix]) -> CascadeStates:
        steps = torch.zeros(len(prefixes), dtype=torch.long, device=self.context.device)
        second = LateStates([*prefixes], lambda some: self.begun_second.start(some))
        return CascadeStates(self.first.start(prefixes), steps, second)

    def advance(self, states: CascadeStates, tokens: torch.Tensor) -> CascadeStates:
        second = self.begun_second.advance(started(states.second), tokens)
        return CascadeStates(self.first.advance(states.first, tokens), states.steps + 1, second)

    def logits(self, states: CascadeStates) -> torch.Tensor:
        log_probs = self.first.logits(states.first)
        left = ~self.first.goes_on(states.first) & (states.steps <= self.second_depth)
        rows = left.nonzero()[:, 0]
        if len(rows):
            second = started(states.second.select(rows))
            scores = self.begun_second.logits(second).float().log_softmax(dim=-1)
            log_probs = log_probs.index_copy(0, rows, scores.to(log_probs))
        return log_probs

    def chain(self, states, depth, min_log_prob, tokens=None, restrict=None) -> torch.Tensor | None:
        first = self.first.append(states.first, tokens)
        chains = self.first.chain(first, depth, min_log_prob, None, restrict)
        if chains is None:
            return None
        rows = (~self.first.goes_on(first)).nonzero()[:, 0]
        if len(rows):
            second = started(states.second.select(rows))
            most = min(depth, self.second_depth)
            given = tokens if tokens is None else tokens[rows]
            drafted = _chain(self.begun_second, second, most, min_log_prob, given)
            chains[rows] = torch.nn.functional.pad(
                drafted.to(chains), (0, depth - drafted.size(1)), value=MISSING
            )
        return chains

    def keep(self, running: Sequence[Prefix]) -> None:
        self.first.keep(running)
        if self._second_has_begun:
            self.begun_second.keep(running)

    def cost(self, root: Prefix) -> DraftCost:
        return self.begun_second.cost(root) if self._second_has_begun else DraftCost()

    @property
    def _second_has_begun(self) -> bool:
        return "begun_second" in vars(self)


def _chain(
    proposer: Proposer, states: States, depth: int, min_log_prob: float, tokens: torch.Tensor | None
) -> torch.Tensor:
    """Return ``Proposer.chain``, step by step if the proposer does not support it."""
    chains = proposer.chain(states, depth, min_log_prob, tokens)
    if chains is not None:
        return chains
    states, steps, total = proposer.append(states, tokens), [], 0.0
    for step in range(depth):
        best, columns = proposer.logits(states).float().log_softmax(dim=-1).max(dim=-1)
        tokens, total = proposer.token_ids(columns), total + best
        steps.append(
            tokens if min_log_prob == -math.inf else tokens.where(total >= min_log_prob, MISSING)
        )
        if step + 1 < depth:
            states = proposer.advance(states, tokens)
    return torch.stack(steps, dim=1)
