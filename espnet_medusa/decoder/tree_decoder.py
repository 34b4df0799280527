"""What a decoder offers to searches: a token tree that is extended one call at a time."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from espnet_medusa.decoder.node_cache import NodeCache
from espnet_medusa.draft.surrogate import Surrogate
from espnet_medusa.tree import TokenTree


@dataclass(frozen=True)
class NodeOutputs:
    """What one decoder call says about its new nodes.

    Attributes:
        hidden: (U, T, D) last hidden state, for the base vocabulary projection.
        head_input: (U, T, D) what the heads that draft start from; ``hidden`` itself without an
            own block.
    """

    hidden: torch.Tensor
    head_input: torch.Tensor


@dataclass
class TreeState:
    """Trees of U utterances with everything the decoder remembers of them.

    Attributes:
        tree: Tokens and ancestors of the nodes.
        cache: Self-attention keys and values by node.
        memory: Per layer, cross-attention keys and values (U, heads, S, size), once an utterance.
        memory_mask: (U, 1, 1, S) additive mask of padded encoder frames, or None.
        with_heads: Whether ``extend`` also computes what the heads start from.
        calls: Decoder calls so far.
        nodes: Nodes they evaluated, of all utterances.
    """

    tree: TokenTree
    cache: NodeCache
    memory: list[tuple[torch.Tensor, torch.Tensor]]
    memory_mask: torch.Tensor | None
    with_heads: bool
    calls: int = 0
    nodes: int = 0


class TreeDecoder(ABC):
    """A decoder over token trees; greedy and beam searches know nothing else of a model."""

    @property
    @abstractmethod
    def max_depth(self) -> int:
        """Positions the decoder has: the longest path, prompt included."""

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
        self,
        state: TreeState,
        tokens: torch.Tensor,
        parents: torch.Tensor,
        present: torch.Tensor | None = None,
    ) -> NodeOutputs:
        """Evaluate new nodes: one decoder call.

        Args:
            state: Changed in place.
            tokens: (U, T).
            parents: (U, T), as ``TokenTree.add`` takes them. A row with fewer nodes is padded
                with any token under ``ROOT``; nobody may descend from it.
            present: (U, T) bool, False where padded, to save the work; None: compute all.
        """

    def keep(self, state: TreeState, nodes: torch.Tensor) -> None:
        """Drop all nodes but these slots (U, M), as ``TokenTree.keep`` takes them."""
        state.tree = state.tree.keep(nodes)
        state.cache.keep(nodes)

    def select(self, state: TreeState, utterances: torch.Tensor) -> None:
        """Drop all utterances but these (indices)."""
        state.tree = state.tree.select(utterances)
        state.cache.select(utterances)
        state.memory = [(keys[utterances], values[utterances]) for keys, values in state.memory]
        if state.memory_mask is not None:
            state.memory_mask = state.memory_mask[utterances]

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Base head: (..., D) to (..., V)."""

    @abstractmethod
    def surrogate(self) -> Surrogate | None:
        """What drafts from ``head_input``; None without heads."""

    @property
    @abstractmethod
    def heads_trained(self) -> bool:
        """False when the heads are as they were made, or there are none."""
