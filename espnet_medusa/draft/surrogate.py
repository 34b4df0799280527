"""What stands in for the decoder behind prefixes that it has not evaluated."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from espnet_medusa.prefix import Prefix


class Surrogate(ABC):
    """Drafts. A new way to draft supplies this and nothing else.

    A state belongs to one prefix. States come and go in lists, so that one call serves all
    hypotheses of all utterances.
    """

    @property
    @abstractmethod
    def max_steps(self) -> int | None:
        """How often a state can be advanced; None without limit."""

    @abstractmethod
    def start(self, prefixes: Sequence[Prefix]) -> list[Any]:
        """States of R evaluated prefixes (``head_input`` is set)."""

    @abstractmethod
    def advance(self, states: Sequence[Any], tokens: Sequence[int]) -> list[Any]:
        """R states, each longer by its token."""

    @abstractmethod
    def logits(self, states: Sequence[Any]) -> torch.Tensor:
        """(R, V) for the token that follows; states have been advanced at least once."""
