"""Parallel heads as a surrogate: step k behind an evaluated prefix is head k's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from espnet_medusa.draft.surrogate import Surrogate


@dataclass(frozen=True)
class ParallelStates:
    """Where R drafted prefixes stand.

    Attributes:
        tables: (P, K, V') logits of all heads at P evaluated prefixes.
        origins: (R,) which of these each drafted prefix began with.
        steps: (R,) tokens behind it; what follows them is head ``step``'s.
    """

    tables: torch.Tensor
    origins: torch.Tensor
    steps: torch.Tensor

    def select(self, rows: torch.Tensor) -> ParallelStates:
        return replace(self, origins=self.origins[rows], steps=self.steps[rows])

    def join(self, others: ParallelStates) -> ParallelStates:
        return ParallelStates(
            torch.cat([self.tables, others.tables]),
            torch.cat([self.origins, others.origins + len(self.tables)]),
            torch.cat([self.steps, others.steps]),
        )


class ParallelHeadsSurrogate(Surrogate):
    """Linear or block heads in the decoder's place; they do not see which tokens were drafted.

    Args:
        heads: (R, D) to (R, K, D), with ``num_heads`` K.
        projection: (R, D) to (R, V').
        vocabulary: As ``Surrogate``'s.
    """

    def __init__(
        self,
        heads: Callable[[torch.Tensor], torch.Tensor],
        projection: Callable[[torch.Tensor], torch.Tensor],
        vocabulary: torch.Tensor | None = None,
    ):
        self.heads, self.projection, self.vocabulary = heads, projection, vocabulary

    @property
    def max_steps(self) -> int:
        return self.heads.num_heads

    def start(self, head_input: torch.Tensor) -> ParallelStates:
        # One matrix product for all heads.
        tables = self.projection(self.heads(head_input).flatten(0, 1))
        return ParallelStates(
            tables.unflatten(0, (-1, self.max_steps)),
            torch.arange(len(head_input), device=head_input.device),
            torch.zeros(len(head_input), dtype=torch.long, device=head_input.device),
        )

    def advance(self, states: ParallelStates, tokens: torch.Tensor) -> ParallelStates:
        return replace(states, steps=states.steps + 1)

    def logits(self, states: ParallelStates) -> torch.Tensor:
        return states.tables[states.origins, states.steps - 1]
