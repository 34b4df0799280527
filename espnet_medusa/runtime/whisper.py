"""How Whisper's decoder runs over token trees: weights laid out once, no module in the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from espnet_medusa.decoder.tree_decoder import NodeOutputs, TreeDecoder, TreeState
from espnet_medusa.draft.parallel_heads import ParallelHeadsSurrogate
from espnet_medusa.draft.recurrent_heads import RecurrentHeadsSurrogate
from espnet_medusa.draft.surrogate import Surrogate
from espnet_medusa.heads import RecurrentHeads
from espnet_medusa.masks import padding_mask
from espnet_medusa.runtime.heads import (
    PackedParallelHeads,
    PackedRecurrentHeads,
    PackedResidualLayers,
)
from espnet_medusa.runtime.layer import LayerStack, PackedLayer, Packing
from espnet_medusa.runtime.linear import pack_norm, pack_projection
from espnet_medusa.runtime.native.layer import NativeStack, visible_bits
from espnet_medusa.runtime.node_cache import NodeCache
from espnet_medusa.runtime.precision import Precision, draft_precision
from espnet_medusa.tree import TokenTree, visibility

if TYPE_CHECKING:
    from espnet_medusa.decoder.whisper import WhisperMedusaDecoder


class WhisperRuntime(TreeDecoder):
    """A trained decoder as searches call it; its weights at this moment, for inference only.

    Args:
        decoder: The trained module.
        precision: What to compute in.
    """

    def __init__(self, decoder: WhisperMedusaDecoder, precision: Precision):
        self.precision, dtype = precision, precision.dtype
        whisper, self.heads = decoder.whisper, decoder.heads
        self.dtype, self.device = dtype, whisper.embed_tokens.weight.device
        self._max_depth = whisper.config.max_target_positions
        self.table, self.scale = whisper.embed_tokens.weight.detach(), whisper.embed_scale
        self.positions = whisper.embed_positions.weight.detach()
        self.layers = pack_layers(decoder.layers, precision)
        self.norm = pack_norm(whisper.layer_norm, precision)
        self.projection = pack_projection(self.table, precision)
        if precision.int8_layers:
            self.table = None  # the projection has the rows, in a quarter of the memory
        self.base_head = self.block = None
        if self.heads is not None and self.heads.base is not None:
            self.base_head = PackedResidualLayers(self.heads.base, precision)
        if self.heads is not None and self.heads.block is not None:
            self.block = pack_layers([self.heads.block], precision)

    @property
    def max_depth(self) -> int:
        return self._max_depth

    @property
    def num_heads(self) -> int:
        return 0 if self.heads is None else self.heads.num_heads

    @property
    def heads_trained(self) -> bool:
        return self.heads is not None and self.heads.trained

    def start(
        self, memory: torch.Tensor, memory_lengths: torch.Tensor, with_heads: bool = True
    ) -> TreeState:
        memory = memory.to(self.dtype)
        layers = [*self.layers]
        if with_heads and self.block is not None:
            layers += self.block
        first = layers[0]
        sizes = len(layers), len(memory), first.num_heads, first.head_size
        return TreeState(
            trees=[TokenTree() for _ in memory],
            cache=NodeCache(*sizes, self.dtype, self.device),
            memory=[layer.attend_memory(memory) for layer in layers],
            memory_mask=padding_mask(memory, memory_lengths),
            with_heads=with_heads,
        )

    def extend(
        self,
        state: TreeState,
        tokens: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]],
    ) -> NodeOutputs:
        first, sizes = self._grow(state, tokens, parents)
        width = max(sizes)
        state.cache.reserve(width)
        ids = [token for row in tokens for token in row]
        positions = [
            depth
            for tree, size in zip(state.trees, sizes, strict=True)
            for depth in depths(tree, first, size)
        ]
        numbers = torch.from_numpy(np.array([ids, positions])).to(self.device)
        packing = Packing(self._present(sizes), (len(sizes), width))
        outputs = self._compute(state, *numbers.unbind(), self._mask(state.trees, first), packing)
        state.cache.commit(width)
        return outputs

    def _grow(
        self,
        state: TreeState,
        tokens: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]],
    ) -> tuple[int, list[int]]:
        """Put new nodes into the trees: the first one's slot, and their numbers."""
        first, sizes = state.num_nodes, [*map(len, tokens)]
        for tree, row in zip(state.trees, parents, strict=True):
            tree.add(row)
            tree.fill(first + max(sizes))
        state.calls += 1
        state.nodes += sum(sizes)
        return first, sizes

    def _compute(
        self,
        state: TreeState,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        packing: Packing,
    ) -> NodeOutputs:
        """All that happens on the device: the same operations for the same shapes.

        Args:
            state: Its cache gets the new nodes.
            ids: (R,) tokens.
            positions: (R,).
            mask: Of ``_mask``.
            packing: Where the R nodes stand among (U, T).
        """
        places = torch.nn.functional.embedding(positions, self.positions)
        hidden = (self._embeddings(ids) + places).to(self.dtype)
        hidden = self.layers.extend(hidden, packing, 0, mask, state)
        hidden = head_input = self.norm(hidden)
        if len(state.memory) > len(self.layers):
            head_input = self.block.extend(hidden, packing, len(self.layers), mask, state)
        return NodeOutputs(hidden, head_input)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.base_head is not None:
            hidden = self.base_head(hidden)
        return self.projection(hidden)

    def surrogate(
        self, vocabulary: torch.Tensor | None = None, precision: str | None = None
    ) -> Surrogate | None:
        if self.heads is None:
            return None
        chosen = draft_precision(precision, self.precision, self.device)
        projection = self.projection
        if vocabulary is not None or chosen != self.precision:
            rows = self.table if vocabulary is None else self._rows(vocabulary)
            projection = pack_projection(rows, chosen)
        if isinstance(self.heads, RecurrentHeads):
            cell = PackedRecurrentHeads(self.heads, self.precision)
            return RecurrentHeadsSurrogate(cell, self.embed_tokens, projection, vocabulary)
        heads = PackedParallelHeads(self.heads, self.precision)
        return ParallelHeadsSurrogate(heads, projection, vocabulary)

    def embed_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token embeddings without positions: (R,) to (R, D)."""
        return self._embeddings(tokens).to(self.dtype)

    def _embeddings(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self._rows(tokens)
        return rows if self.scale == 1 else rows * self.scale

    def _rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of the table: (R,) to (R, D)."""
        if self.table is None:
            return self.projection.rows(tokens)
        return torch.nn.functional.embedding(tokens, self.table)

    def _mask(self, trees: Sequence[TokenTree], first: int) -> torch.Tensor | None:
        """Who attends to whom, as layers take it; None where a lone node sees all."""
        num_nodes = len(trees[0])
        if first == num_nodes - 1 and all(
            tree.visible[-1] == (1 << num_nodes) - 1 for tree in trees
        ):
            return None
        if self.precision.int8_layers:
            return visible_bits(trees, first)
        mask = np.where(visibility(trees, first), np.float32(0), np.float32(-np.inf))
        return torch.from_numpy(mask)[:, None].to(self.device, self.dtype)

    def _present(self, sizes: Sequence[int]) -> torch.Tensor | None:
        if min(sizes) == max(sizes):
            return None
        width = torch.arange(max(sizes), device=self.device)
        return width < torch.tensor(sizes, device=self.device)[:, None]


def pack_layers(layers: Iterable[torch.nn.Module], precision: Precision) -> LayerStack:
    """``transformers`` WhisperDecoderLayers laid out for ``extend``."""
    if precision.int8_layers:
        return NativeStack(layers)
    return LayerStack([PackedLayer(layer, precision) for layer in layers])


def depths(tree: TokenTree, first: int, count: int) -> list[int]:
    """Positions of ``count`` nodes from slot ``first`` on."""
    return [tree.depth(slot) for slot in range(first, first + count)]
