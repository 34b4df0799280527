"""Parallel heads as a surrogate: step k behind an evaluated prefix is head k's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from espnet_medusa.draft.surrogate import Surrogate
from espnet_medusa.prefix import Prefix

if TYPE_CHECKING:
    from espnet_medusa.decoder.whisper import WhisperMedusaDecoder


@dataclass(frozen=True, slots=True)
class ParallelState:
    """Where a drafted prefix stands.

    Attributes:
        table: (K, V) logits of all heads at the evaluated prefix it began with.
        step: Tokens behind that prefix; what follows them is head ``step``'s.
    """

    table: torch.Tensor
    step: int = 0


class ParallelHeadsSurrogate(Surrogate):
    """Linear or block heads in the decoder's place; they do not see which tokens were drafted.

    Args:
        decoder: Its heads draft.
    """

    def __init__(self, decoder: WhisperMedusaDecoder):
        self.decoder = decoder

    @property
    def max_steps(self) -> int:
        return self.decoder.num_heads

    def start(self, prefixes: Sequence[Prefix]) -> list[ParallelState]:
        head_input = torch.stack([prefix.head_input for prefix in prefixes])
        tables = self.decoder.head_logits(head_input).transpose(0, 1)
        return [ParallelState(table) for table in tables]

    def advance(
        self, states: Sequence[ParallelState], tokens: Sequence[int]
    ) -> list[ParallelState]:
        return [replace(state, step=state.step + 1) for state in states]

    def logits(self, states: Sequence[ParallelState]) -> torch.Tensor:
        assert all(1 <= state.step <= self.max_steps for state in states)
        return torch.stack([state.table[state.step - 1] for state in states])
