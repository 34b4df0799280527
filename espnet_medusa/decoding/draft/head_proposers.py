"""Parallel, recurrent and attending heads as proposers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import (
    MISSING,
    DraftContext,
    HeadsProposer,
    States,
    head_inputs,
)


@dataclass(frozen=True)
class ParallelStates(States):
    """Origins and lengths of R drafted prefixes."""

    tables: torch.Tensor  # (P, K, V') logits of all K heads after P evaluated prefixes
    origins: torch.Tensor  # (R,) index of the evaluated prefix that each drafted prefix extends
    steps: torch.Tensor  # (R,) number of later tokens; head ``steps`` predicts the next one

    def select(self, rows: torch.Tensor) -> ParallelStates:
        return replace(self, origins=self.origins[rows], steps=self.steps[rows])

    def join(self, others: ParallelStates) -> ParallelStates:
        return ParallelStates(
            torch.cat([self.tables, others.tables]),
            torch.cat([self.origins, others.origins + len(self.tables)]),
            torch.cat([self.steps, others.steps]),
        )


@dataclass(eq=False)
class ParallelHeadsProposer(HeadsProposer):
    """A proposer with parallel heads, which do not depend on drafted tokens."""

    tables: Callable[[torch.Tensor], torch.Tensor]  # logits of all heads, (R, D) to (R, K, V')
    max_steps: int = field()  # K; required, although the base class has a default
    vocabulary: torch.Tensor | None = None

    def start_from(self, head_input: torch.Tensor) -> ParallelStates:
        rows = torch.arange(len(head_input), device=head_input.device)
        return ParallelStates(self.tables(head_input), rows, torch.zeros_like(rows))

    def advance(self, states: ParallelStates, tokens: torch.Tensor) -> ParallelStates:
        return replace(states, steps=states.steps + 1)

    def logits(self, states: ParallelStates) -> torch.Tensor:
        return states.tables[states.origins, states.steps - 1]

    def chain(self, states, depth, min_log_prob, tokens=None, restrict=None) -> torch.Tensor | None:
        states = self.append(states, tokens)
        steps = torch.arange(depth, device=states.steps.device) - 1 + states.steps[:, None]
        # After the last head, its token again: it can only be rejected or right.
        scores = states.tables[states.origins[:, None], steps.clamp(max=self.max_steps - 1)]
        if restrict is not None:
            scores = restrict(scores.flatten(0, 1)).view(scores.shape)
        best, columns = scores.max(dim=-1)
        if min_log_prob > -math.inf:
            log_probs = best.float() - scores.float().logsumexp(dim=-1)
            columns = columns.masked_fill(log_probs.cumsum(dim=1) < min_log_prob, MISSING)
        if restrict is not None:
            columns = columns.masked_fill(best == -math.inf, MISSING)
        return self.token_ids(columns)


@dataclass(frozen=True)
class RecurrentStates(States):
    hidden: torch.Tensor  # (R, D)


@dataclass(eq=False)
class RecurrentHeadsProposer(HeadsProposer):
    # Packed cell; ``advance`` takes states and embeddings (R, D), and ``output`` returns the input
    # (R, D) of the projection.
    heads: Any
    embed: Callable[[torch.Tensor], torch.Tensor]  # token embeddings, (R,) to (R, D)
    projection: Callable[[torch.Tensor], torch.Tensor]  # (R, D) to (R, V')
    vocabulary: torch.Tensor | None = None

    def start_from(self, head_input: torch.Tensor) -> RecurrentStates:
        return RecurrentStates(head_input)

    def advance(self, states: RecurrentStates, tokens: torch.Tensor) -> RecurrentStates:
        return RecurrentStates(self.heads.advance(states.hidden, self.embed(tokens)))

    def logits(self, states: RecurrentStates) -> torch.Tensor:
        return self.projection(self.heads.output(states.hidden))


@dataclass(frozen=True)
class AttendingStates(RecurrentStates):
    utterances: list[int]  # the utterance of each row, on the host, because shapes depend on it

    def select(self, rows: torch.Tensor) -> RecurrentStates:
        utterances = self.utterances
        if len({*utterances}) == 1:  # without tolist, which synchronizes with the GPU
            return AttendingStates(self.hidden[rows], utterances[:1] * len(rows))
        return super().select(rows)


class AttendingHeadsProposer(RecurrentHeadsProposer):
    """A proposer with attending heads; ``heads`` is a ``PackedAttendingHeads``."""

    cross_keys_values: Any = None
    _rows: dict[Prefix, int]

    def begin(self, context: DraftContext) -> RecurrentHeadsProposer:
        begun = copy.copy(self)
        begun.cross_keys_values = self.heads.prepare(context.cross_keys_values)
        begun._rows = {root: row for row, root in enumerate(context.roots)}
        return begun

    def start(self, prefixes: Sequence[Prefix]) -> AttendingStates:
        return AttendingStates(head_inputs(prefixes), [self._rows[p.root] for p in prefixes])

    def advance(self, states: AttendingStates, tokens: torch.Tensor) -> AttendingStates:
        of_rows = self.cross_keys_values, states.utterances
        hidden = self.heads.advance(states.hidden, self.embed(tokens), *of_rows)
        return AttendingStates(hidden, states.utterances)

    def chain(self, states, depth, min_log_prob, tokens=None, restrict=None) -> torch.Tensor | None:
        if not self.heads.has_chain or restrict is not None:
            return None
        embedded = None if tokens is None else self.embed(tokens)
        of_rows = self.cross_keys_values, states.utterances
        return self.heads.chain(states.hidden, *of_rows, depth, min_log_prob, embedded)
