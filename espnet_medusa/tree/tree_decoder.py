"""What a decoder offers to searches: a token tree that is extended one call at a time."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from espnet_medusa.tree.best_token import BestTokens, Restriction, best_tokens
from espnet_medusa.tree.node_cache import NodeCache
from espnet_medusa.tree.proposer import Proposer
from espnet_medusa.tree.token_tree import TokenTree
from espnet_medusa.tree.top_tokens import TopTokens, top_tokens
from espnet_medusa.tree.upload import upload


@dataclass(frozen=True)
class NodeOutputs:
    """What one decoder call says about its R new nodes, one utterance's behind the other's.

    Attributes:
        hidden: (R, D) last hidden state, for the base vocabulary projection.
        head_input: (R, D) what the heads that draft start from; ``hidden`` itself without an own
            block.
    """

    hidden: torch.Tensor
    head_input: torch.Tensor


@dataclass
class TreeState:
    """Trees of U utterances with everything the decoder remembers of them.

    Attributes:
        trees: U, equally long: shorter ones are filled with dead slots.
        cache: Self-attention keys and values by node.
        memory: Per layer, cross-attention keys and values (U, S, 2, heads, size); none where the
            memory is a prefix of the cache.
        memory_mask: (U, 1, 1, S) additive mask of what is padding in either, or None.
        with_heads: Whether ``extend`` also computes what the heads start from.
        offsets: U, positions before the first node: that prefix.
        cross_keys_values: Cross-attention keys and values of the last layer, for heads that attend
            to the encoder output; rows of finished utterances stay. None without such heads.
        calls: Decoder calls so far.
        nodes: Nodes they evaluated, of all utterances.
    """

    trees: list[TokenTree]
    cache: NodeCache
    memory: list[torch.Tensor]
    memory_mask: torch.Tensor | None
    with_heads: bool
    offsets: list[int]
    cross_keys_values: Any = None
    calls: int = 0
    nodes: int = 0

    @property
    def num_nodes(self) -> int:
        """N, the same for every utterance."""
        return len(self.trees[0])


class TreeDecoder(ABC):
    """A decoder over token trees; greedy and beam searches know nothing else of a model."""

    @abstractmethod
    def max_depth(self, frames: int) -> int:
        """The longest path, prompt included, that it has positions for behind so much memory."""

    @property
    @abstractmethod
    def num_heads(self) -> int:
        """K, the heads that can draft; 0 without heads."""

    @abstractmethod
    def start(
        self, memory: torch.Tensor, memory_lengths: torch.Tensor, with_heads: bool = True
    ) -> TreeState:
        """Begin empty trees; no decoder call.

        Args:
            memory: (U, S, D) encoder output.
            memory_lengths: (U,) frames.
            with_heads: Whether ``extend`` shall serve the heads.
        """

    @abstractmethod
    def extend(
        self, state: TreeState, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]
    ) -> NodeOutputs:
        """Evaluate new nodes: one decoder call.

        Args:
            state: Changed in place. Each utterance's new nodes get the slots behind the ones
                there are, N on.
            tokens: Of the U utterances; one may have more than another.
            parents: As ``TokenTree.add`` takes them.
        """

    def keep(self, state: TreeState, slots: Sequence[Sequence[int]]) -> None:
        """Drop all nodes but these, as ``TokenTree.keep`` takes them, of each utterance."""
        for tree, kept in zip(state.trees, slots, strict=True):
            tree.keep(kept)
        width = max(map(len, slots))
        for tree in state.trees:
            tree.fill(width)
        state.cache.keep(slots)

    def select(self, state: TreeState, utterances: Sequence[int]) -> None:
        """Drop all utterances but these."""
        state.trees = [state.trees[row] for row in utterances]
        state.offsets = [state.offsets[row] for row in utterances]
        state.cache.select(utterances)
        rows = upload(utterances, state.cache.slots.device)
        state.memory = [keys_values[rows] for keys_values in state.memory]
        if state.memory_mask is not None:
            state.memory_mask = state.memory_mask[rows]

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Base head: (..., D) to (..., V)."""

    def best_tokens(
        self, logits: torch.Tensor, restriction: Restriction | None = None
    ) -> BestTokens:
        """What ``best_tokens`` of ``tree.best_token`` says of ``logits`` (R, V)."""
        return best_tokens(logits, restriction)

    def top_tokens(
        self, logits: torch.Tensor, count: int, restriction: Restriction | None = None
    ) -> TopTokens:
        """What ``top_tokens`` of ``tree.top_tokens`` says of ``logits`` (R, V)."""
        return top_tokens(logits, count, restriction)

    @abstractmethod
    def proposer(
        self,
        vocabulary: torch.Tensor | None = None,
        precision: str | None = None,
        verified: bool = False,
    ) -> Proposer | None:
        """What drafts from ``head_input``; None without heads.

        Args:
            vocabulary: (V',) tokens that it may draft, ascending; None: all.
            precision: As the decode option ``draft_precision``; None: the decoder's.
            verified: Whether the decoder checks the drafts: with no ``precision`` they may then be
                computed in whatever is fast.
        """

    @property
    @abstractmethod
    def heads_trained(self) -> bool:
        """False when the heads are as they were made, or there are none."""
