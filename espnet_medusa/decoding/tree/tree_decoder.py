"""The interface of a decoder for searches: a token tree that each call extends."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from espnet_medusa.decoding.tree.best_tokens import best_tokens, top_tokens
from espnet_medusa.decoding.tree.chains import ChainLoop
from espnet_medusa.decoding.tree.node_cache import NodeCache
from espnet_medusa.decoding.tree.proposer import Proposer
from espnet_medusa.decoding.tree.token_tree import ROOT, TokenTree, chain_parents, upload


@dataclass(frozen=True)
class NodeOutputs:
    """Outputs of a decoder call for its R new nodes, utterance by utterance."""

    hidden: torch.Tensor  # (R, D) last hidden state, input of ``TreeDecoder.logits``
    # (R, D) input of the draft heads; equals ``hidden`` if the heads have no block.
    head_input: torch.Tensor


@dataclass
class TreeState:
    """Token trees of U utterances and the decoder's caches."""

    trees: list[TokenTree]  # U, padded to one length
    cache: NodeCache  # self-attention keys and values by node
    # Per layer, cross-attention keys and values (U, S, 2, heads, size); empty if the encoder output
    # is a prefix in the cache.
    encoder_keys_values: list[torch.Tensor]
    # (U, 1, 1, S) additive padding mask of the encoder output, or None.
    encoder_out_mask: torch.Tensor | None
    with_heads: bool  # whether ``extend`` also computes the head input
    offsets: list[int]  # U, position of the first node: the prefix's length without padding
    # The last layer's cross-attention keys and values for heads that attend to the encoder output;
    # ``select`` does not drop those of finished utterances. None without such heads.
    cross_keys_values: Any = None
    calls: int = 0  # decoder calls so far
    nodes: int = 0  # nodes evaluated so far, of all utterances

    @property
    def num_nodes(self) -> int:
        """N, the same for every utterance."""
        return len(self.trees[0])


class TreeDecoder(ABC):
    """A decoder over token trees; searches use a model's decoder only through this interface."""

    @abstractmethod
    def max_depth(self, frames: int) -> int:
        """Return the maximum path length with the prompt, for encoder output of ``frames`` rows."""

    @property
    @abstractmethod
    def num_heads(self) -> int:
        """K, the number of draft heads; 0 without heads."""

    @abstractmethod
    def start(
        self, encoder_out: torch.Tensor, encoder_out_lens: torch.Tensor, with_heads: bool = True
    ) -> TreeState:
        """Return empty trees for encoder output (U, S, D), without a decoder call.

        ``encoder_out_lens``: (U,) frames, or (U, S) the frames of merged rows (Whisper only).
        """

    @abstractmethod
    def extend(
        self, state: TreeState, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]
    ) -> NodeOutputs:
        """Evaluate new nodes in one decoder call.

        Args:
            state: Changed in place. Each utterance's new nodes get the slots N, N + 1, ...
            tokens: New tokens of each of U utterances; their numbers may differ.
            parents: As in ``TokenTree.add``.
        """

    def keep(self, state: TreeState, slots: Sequence[Sequence[int]]) -> None:
        """Drop all nodes except these slots of each utterance, as ``TokenTree.keep``."""
        width = max(map(len, slots))
        for tree, row in zip(state.trees, slots, strict=True):
            tree.keep(row)
            tree.fill(width)
        state.cache.keep(slots)

    def select(self, state: TreeState, utterances: Sequence[int]) -> None:
        """Drop all utterances except these."""
        state.trees = [state.trees[row] for row in utterances]
        state.offsets = [state.offsets[row] for row in utterances]
        state.cache.select(utterances)
        rows = upload(utterances, state.cache.slots.device)
        state.encoder_keys_values = [keys_values[rows] for keys_values in state.encoder_keys_values]
        if state.encoder_out_mask is not None:
            state.encoder_out_mask = state.encoder_out_mask[rows]

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the base head's logits: (..., D) to (..., V)."""

    def logits_after(
        self,
        encoder_out: torch.Tensor,
        encoder_out_lens: torch.Tensor,
        texts: Sequence[Sequence[int]],
        together: int | None = None,
    ) -> torch.Tensor:
        """Return the logits (U, V) after the last tokens of U texts.

        Encoder output as for ``start``. ``together``: most utterances of a call; None: all.
        """
        most, found = together or len(texts), []
        for first in range(0, len(texts), most):
            rows = slice(first, first + most)
            state = self.start(encoder_out[rows], encoder_out_lens[rows], with_heads=False)
            paths = [chain_parents(len(text), ROOT, 0) for text in texts[rows]]
            hidden = self.extend(state, texts[rows], paths).hidden
            ends = [end - 1 for end in accumulate(map(len, texts[rows]))]
            found.append(self.logits(hidden[upload(ends, hidden.device)]))
        return torch.cat(found)

    def chain_loop(self, proposer: Proposer | None) -> ChainLoop | None:
        """Return greedy search with chains of this drafter in one call; None: not supported.

        ``proposer`` None: no drafts.
        """
        return None

    def draft_depths(self, most: int) -> Sequence[int]:
        """Return the depths of drafts, from 0 to ``most``, among which the fastest is chosen."""
        return range(most + 1)

    @property
    def description(self) -> str:
        """What the seconds of a decoder call depend on: machine, model and precision."""
        return type(self).__name__

    # Runtimes may override these with faster kernels.
    best_tokens, top_tokens = staticmethod(best_tokens), staticmethod(top_tokens)

    @abstractmethod
    def proposer(
        self,
        vocabulary: torch.Tensor | None = None,
        precision: str | None = None,
        verified: bool = False,
    ) -> Proposer | None:
        """Return the heads as a drafter; None without heads.

        Args:
            vocabulary: (V',) tokens that may be drafted, ascending; None: all.
            precision: As the decode option ``draft_precision``; None: the decoder's.
            verified: Whether drafts are verified. If so and ``precision`` is None, the heads may
                compute in the fastest precision.
        """

    @property
    @abstractmethod
    def heads_trained(self) -> bool:
        """False if the heads have their initial weights, or if there are none."""
