"""Prefixes in a draft model's token tree for prefixes of the main model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from espnet_medusa.decoding.draft.draft_tree import DraftTree
from espnet_medusa.decoding.tree.prefix import Prefix

UNKNOWN = -1e4  # logit of tokens that the draft model cannot produce; keeps sums finite


class PrefixMap(ABC):
    """Maps prefixes of the main model to draft prefixes, of any type, in the draft model's tree."""

    def __init__(self, tree: DraftTree):
        self.tree = tree

    @abstractmethod
    def begin(self, root: Prefix) -> Any:
        """Return the draft prefix after a prompt of the draft model."""

    @abstractmethod
    def follow(self, draft_prefix: Any, token: int) -> Any:
        """Return the draft prefix after another token of the main model."""

    @abstractmethod
    def logits(self, draft_prefixes: Sequence[Any]) -> torch.Tensor:
        """Return logits (R, V) over the main model's tokens; rows after an end token are unused."""

    @abstractmethod
    def keep(self, draft_prefixes: Sequence[Any]) -> None:
        """Forget all draft prefixes except these and their continuations."""


class OneToOne(PrefixMap):
    """For vocabularies that are equal, or differ only in token ids; draft prefixes are tree nodes.

    Args:
        end: The draft model's end token.
        feed: For each main token, the draft model's token or -1; None: ids are equal.
        columns: (V,) for each main token, the column of the draft model's logits or -1; None:
            columns are equal.
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
        self.unknown = None if columns is None else self.columns < 0

    def begin(self, root: Prefix) -> Prefix:
        return root

    def follow(self, draft_prefix: Prefix, token: int) -> Prefix:
        if self._ended(draft_prefix) or not self.tree.has_room(draft_prefix):
            return draft_prefix
        token = token if self.feed is None else self.feed[token]
        return draft_prefix.child(token) if token >= 0 else draft_prefix

    def logits(self, draft_prefixes: Sequence[Prefix]) -> torch.Tensor:
        # Unused rows get the parent's logits: the draft model does not evaluate end tokens.
        logits = self.tree.logits(
            [node.parent if self._ended(node) else node for node in draft_prefixes]
        )
        if self.columns is None:
            return logits
        return logits[:, self.columns].masked_fill_(self.unknown, UNKNOWN)

    def keep(self, draft_prefixes: Sequence[Prefix]) -> None:
        self.tree.keep(draft_prefixes)

    def _ended(self, node: Prefix) -> bool:
        return node.token == self.end and node.parent is not None
