"""How a search walks a draft model's tree by tokens of the main model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from espnet_medusa.draft.draft_tree import DraftTree
from espnet_medusa.tree.prefix import Prefix

UNSAID = -1e4  # logit of a token that the draft model cannot name; finite: some token has to come


class Interpreter(ABC):
    """Walks the draft model's tree by tokens of the main model.

    A place is where a text of the main model stands in the tree; its kind is the interpreter's own.

    Args:
        tree: What the draft model evaluates.
    """

    def __init__(self, tree: DraftTree):
        self.tree = tree

    @abstractmethod
    def begin(self, root: Prefix) -> Any:
        """The place behind a prompt of the draft model."""

    @abstractmethod
    def follow(self, place: Any, token: int) -> Any:
        """The place one token of the main model further."""

    @abstractmethod
    def logits(self, places: Sequence[Any]) -> torch.Tensor:
        """(R, V) over the main model's tokens; what it says behind an end is nobody's concern."""

    @abstractmethod
    def keep(self, places: Sequence[Any]) -> None:
        """Only these places and what lies behind them will be asked for again."""


class OneToOne(Interpreter):
    """A token is a token: both vocabularies are one, or write the same in other numbers.

    Places are nodes of the tree.

    Args:
        tree: What the draft model evaluates.
        end: The draft model's end symbol.
        feed: Of each token of the main model the draft model's, -1 for none; None: the same.
        columns: (V,) of each token of the main model the draft model's that stands for it in
            logits, -1 for none; None: all as they are.
    """

    def __init__(
        self,
        tree: DraftTree,
        end: int,
        feed: Sequence[int] | None = None,
        columns: torch.Tensor | None = None,
    ):
        super().__init__(tree)
        self.end, self.feed = end, feed
        self.columns = None if columns is None else columns.to(tree.device)
        self.unsaid = None if columns is None else self.columns < 0

    def begin(self, root: Prefix) -> Prefix:
        return root

    def follow(self, place: Prefix, token: int) -> Prefix:
        if self._ended(place) or not self.tree.has_room(place):
            return place
        token = token if self.feed is None else self.feed[token]
        return place.child(token) if token >= 0 else place

    def logits(self, places: Sequence[Prefix]) -> torch.Tensor:
        # Nobody reads what would follow the end.
        found = self.tree.logits([node.parent if self._ended(node) else node for node in places])
        if self.columns is None:
            return found
        return found[:, self.columns].masked_fill_(self.unsaid, UNSAID)

    def keep(self, places: Sequence[Prefix]) -> None:
        self.tree.keep(places)

    def _ended(self, node: Prefix) -> bool:
        return node.token == self.end and node.parent is not None
