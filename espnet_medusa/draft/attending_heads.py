"""Attending heads as a proposer: recurrent heads with cross-attention to the encoder output."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from espnet_medusa.draft.recurrent_heads import RecurrentHeadsProposer, RecurrentStates
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftContext, head_inputs


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
