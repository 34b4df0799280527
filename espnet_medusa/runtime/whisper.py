"""How Whisper's decoder runs over token trees: weights laid out once, no module in the way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from espnet_medusa.decoder.tree_decoder import NodeOutputs, TreeState
from espnet_medusa.masks import padding_mask
from espnet_medusa.runtime.layer import LayerStack, PackedLayer, Packing
from espnet_medusa.runtime.linear import pack_norm
from espnet_medusa.runtime.native.layer import NativeStack, visible_bits
from espnet_medusa.runtime.node_cache import NodeCache
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.runtime.tree_runtime import TreeRuntime
from espnet_medusa.tree import TokenTree

if TYPE_CHECKING:
    from espnet_medusa.decoder.whisper import WhisperMedusaDecoder


class WhisperRuntime(TreeRuntime):
    """Layers with self-attention over the tree and cross-attention over the memory.

    Args:
        decoder: The trained module.
        precision: What to compute in.
    """

    def __init__(self, decoder: WhisperMedusaDecoder, precision: Precision):
        whisper = decoder.whisper
        super().__init__(decoder, precision, whisper.embed_tokens.weight, whisper.embed_scale)
        self.positions = whisper.embed_positions.weight.detach()
        self.layers = pack_layers(decoder.layers, precision)
        self.norm = pack_norm(whisper.layer_norm, precision)
        self.block = None
        if self.heads is not None and self.heads.block is not None:
            self.block = pack_layers([self.heads.block], precision)

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
            offsets=[0] * len(memory),
        )

    def _compute(
        self,
        state: TreeState,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        packing: Packing,
    ) -> NodeOutputs:
        places = torch.nn.functional.embedding(positions, self.positions)
        hidden = (self._embeddings(ids) + places).to(self.dtype)
        hidden = self.layers.extend(hidden, packing, 0, mask, state)
        hidden = head_input = self.norm(hidden)
        if state.with_heads and self.block is not None:
            head_input = self.block.extend(hidden, packing, len(self.layers), mask, state)
        return NodeOutputs(hidden, head_input)

    def _additive_mask(self, state: TreeState, first: int) -> torch.Tensor:
        if self.precision.int8_layers:
            return visible_bits(state.trees, first)
        return super()._additive_mask(state, first)


def pack_layers(layers: Iterable[torch.nn.Module], precision: Precision) -> LayerStack:
    """``transformers`` WhisperDecoderLayers laid out for ``extend``."""
    if precision.int8_layers:
        return NativeStack(layers)
    return LayerStack([PackedLayer(layer, precision) for layer in layers])
