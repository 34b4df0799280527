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


class RecurrentHeadsProposer(HeadsProposer):
    """A proposer with recurrent heads.

    Args:
        heads: Packed cell; ``advance`` takes states and embeddings (R, D), and ``output`` returns
            the input (R, D) of the projection.
        embed: Token embeddings, (R,) to (R, D).
        projection: (R, D) to (R, V').
    """

    def __init__(
        self,
        heads: Any,
        embed: Callable[[torch.Tensor], torch.Tensor],
        projection: Callable[[torch.Tensor], torch.Tensor],
        vocabulary: torch.Tensor | None = None,
    ):
        self.heads, self.embed = heads, embed
        self.projection, self.vocabulary = projection, vocabulary

    def start_from(self, head_input: torch.Tensor) -> RecurrentStates:
        return RecurrentStates(head_input)

    def advance(self, states: RecurrentStates, tokens: torch.Tensor) -> RecurrentStates:
        return RecurrentStates(self.heads.advance(states.hidden, self.embed(tokens)))

    def logits(self, states: RecurrentStates) -> torch.Tensor:
        return self.projection(self.heads.output(states.hidden))
