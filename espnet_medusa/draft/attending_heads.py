"""Attending heads as a proposer: one state per drafted prefix, with cross-attention."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftContext, Proposer, head_inputs


class AttendingLayer(Protocol):
    """Attending heads with packed weights."""

    def prepare(self, cross_keys_values: Any) -> Any:
        """Convert ``TreeState.cross_keys_values`` to the layout that the layer reads."""

    def advance(
        self,
        states: torch.Tensor,
        embedded: torch.Tensor,
        cross_keys_values: Any,
        utterances: Sequence[int],
    ) -> torch.Tensor:
        """Advance states (R, D) by one token with embeddings (R, D).

        Args:
            states: (R, D).
            embedded: (R, D).
            cross_keys_values: Result of ``prepare``.
            utterances: The utterance of each row.
        """

    def chain(
        self, states: torch.Tensor, cross_keys_values: Any, utterances: Sequence[int], depth: int
    ) -> torch.Tensor | None:
        """Draft greedily from states (R, D): (R, depth) columns, or None if not supported."""

    def output(self, states: torch.Tensor) -> torch.Tensor:
        """Return the input of the vocabulary projection: (R, D) to (R, D)."""


@dataclass(frozen=True)
class AttendingStates:
    """The layer's states."""

    hidden: torch.Tensor  # (R, D)
    utterances: list[int]  # the utterance of each row, on the host, because shapes depend on it

    def select(self, rows: torch.Tensor) -> AttendingStates:
        utterances = self.utterances
        if len({*utterances}) == 1:  # does not wait for the GPU
            return AttendingStates(self.hidden[rows], utterances[:1] * len(rows))
        return AttendingStates(self.hidden[rows], [utterances[row] for row in rows.tolist()])

    def join(self, others: AttendingStates) -> AttendingStates:
        hidden = torch.cat([self.hidden, others.hidden])
        return AttendingStates(hidden, self.utterances + others.utterances)


class AttendingHeadsProposer(Proposer):
    """A proposer with attending heads.

    Args:
        embed: Token embeddings, (R,) to (R, D).
        projection: (R, D) to (R, V').
        vocabulary: As ``Proposer``'s.
    """

    max_steps = None

    def __init__(
        self,
        layer: AttendingLayer,
        embed: Callable[[torch.Tensor], torch.Tensor],
        projection: Callable[[torch.Tensor], torch.Tensor],
        vocabulary: torch.Tensor | None = None,
    ):
        self.layer, self.embed = layer, embed
        self.projection, self.vocabulary = projection, vocabulary
        self.cross_keys_values: Any = None
        self._rows: dict[Prefix, int] = {}

    def begin(self, context: DraftContext) -> AttendingHeadsProposer:
        begun = copy.copy(self)
        begun.cross_keys_values = self.layer.prepare(context.cross_keys_values)
        begun._rows = {root: row for row, root in enumerate(context.roots)}
        return begun

    def start(self, prefixes: Sequence[Prefix]) -> AttendingStates:
        hidden = head_inputs(prefixes)
        return AttendingStates(hidden, [self._rows[prefix.root] for prefix in prefixes])

    def advance(self, states: AttendingStates, tokens: torch.Tensor) -> AttendingStates:
        hidden = self.layer.advance(
            states.hidden, self.embed(tokens), self.cross_keys_values, states.utterances
        )
        return AttendingStates(hidden, states.utterances)

    def chain(self, states: AttendingStates, depth: int) -> torch.Tensor | None:
        columns = self.layer.chain(states.hidden, self.cross_keys_values, states.utterances, depth)
        return None if columns is None else self.token_ids(columns)

    def logits(self, states: AttendingStates) -> torch.Tensor:
        return self.projection(self.layer.output(states.hidden))
