"""Recurrent heads as a proposer: one state per drafted prefix."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from espnet_medusa.tree.proposer import HeadsProposer, States


@dataclass(frozen=True)
class RecurrentStates(States):
    """The heads' states of R prefixes."""

    hidden: torch.Tensor  # (R, D)


@dataclass(eq=False)
class RecurrentHeadsProposer(HeadsProposer):
    """A proposer with recurrent heads."""

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
