"""What runs a search ahead: its own step on a surrogate's log-probabilities, some times over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from espnet_medusa.search.ahead.shape import DraftShape
from espnet_medusa.search.scores import Scoring
from espnet_medusa.search.walk import Strategy, Walk
from espnet_medusa.tree.surrogate import Surrogate


class Steps(ABC):
    """The steps of a draft.

    Args:
        strategy: The search.
        scoring: Its scoring while running ahead.
        surrogate: Stands in for the decoder.
        shape: How far and how wide.

    Attributes:
        device: Where states are; known once utterances are.
    """

    def __init__(
        self, strategy: Strategy, scoring: Scoring, surrogate: Surrogate, shape: DraftShape
    ):
        self.strategy, self.scoring = strategy, scoring
        self.surrogate, self.shape = surrogate, shape
        self.device: torch.device | None = None

    @abstractmethod
    def run(self, walks: Sequence[Walk]) -> None:
        """Add ``shape.depth`` steps to the walks' drafts."""
