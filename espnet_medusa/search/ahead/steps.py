"""What runs a search ahead: its own step on a proposer's log-probabilities, some times over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from espnet_medusa.search.ahead.shape import DraftShape
from espnet_medusa.search.scores import Scoring
from espnet_medusa.search.state import SearchState, Strategy
from espnet_medusa.tree.proposer import Proposer


class Steps(ABC):
    """The steps of a draft.

    Args:
        strategy: The search.
        scoring: Its scoring while running ahead.
        proposer: Stands in for the decoder.
        shape: How far and how wide.

    Attributes:
        device: Where draft_states are; known once utterances are.
    """

    def __init__(self, strategy: Strategy, scoring: Scoring, proposer: Proposer, shape: DraftShape):
        self.strategy, self.scoring = strategy, scoring
        self.proposer, self.shape = proposer, shape
        self.device: torch.device | None = None

    @abstractmethod
    def run(self, states: Sequence[SearchState]) -> None:
        """Add ``shape.depth`` steps to the states' drafts."""
