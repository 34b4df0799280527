"""What stands in for the decoder behind prefixes that it has not evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from espnet_medusa.prefix import Prefix


class States(Protocol):
    """What a surrogate knows of R prefixes."""

    def select(self, rows: torch.Tensor) -> Self:
        """States of these rows, in this order; a row may come several times."""

    def join(self, others: Self) -> Self:
        """These rows, then those."""


class Surrogate(ABC):
    """Drafts. A new way to draft supplies this and nothing else.

    Attributes:
        vocabulary: (V',) token ids that ``logits`` are of; None: all.
    """

    vocabulary: torch.Tensor | None = None

    @property
    @abstractmethod
    def max_steps(self) -> int | None:
        """How often a state can be advanced; None without limit."""

    @abstractmethod
    def start(self, head_input: torch.Tensor) -> States:
        """States of R evaluated prefixes.

        Args:
            head_input: (R, D) of ``NodeOutputs``.
        """

    @abstractmethod
    def advance(self, states: States, tokens: torch.Tensor) -> States:
        """R states, each longer by its token (R,)."""

    @abstractmethod
    def logits(self, states: States) -> torch.Tensor:
        """(R, V') for the token that follows; states have been advanced at least once."""

    def token_ids(self, columns: torch.Tensor) -> torch.Tensor:
        """Tokens of columns of ``logits``."""
        return columns if self.vocabulary is None else self.vocabulary[columns]


def head_inputs(prefixes: Sequence[Prefix]) -> torch.Tensor:
    """(R, D) what heads draft from."""
    return torch.stack([outputs[row] for outputs, row in (p.head_input for p in prefixes)])
