"""Decoders with self-attention over the token tree and cross-attention over the memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

import torch

from espnet_medusa.model.heads import AttendingHeads
from espnet_medusa.model.masks import padding_mask
from espnet_medusa.runtime.attending_heads import EncoderKeysValues
from espnet_medusa.runtime.layer import LayerStack, LayerWeights, PackedLayer, Packing
from espnet_medusa.runtime.native_layer import NativeStack, visible_bits
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.runtime.tree_runtime import TreeRuntime
from espnet_medusa.tree.tree_decoder import NodeOutputs, TreeState


class CrossAttentionRuntime(TreeRuntime):
    """A stack of layers over embedded tokens and positions; who inherits sets its parts."""

    layers: LayerStack
    block: LayerStack | None = None

    @abstractmethod
    def _places(self, count: int) -> torch.Tensor:
        """What is added to embedded tokens, (count or more, D), by position."""

    def start(
        self, memory: torch.Tensor, memory_lengths: torch.Tensor, with_heads: bool = True
    ) -> TreeState:
        memory = memory.to(self.dtype)
        layers = self._used_layers(with_heads)
        heads = layers[0].num_heads, layers[0].head_size
        state = self._empty_state(len(memory), heads, with_heads)
        state.memory = [layer.attend_memory(memory) for layer in layers]
        state.memory_mask = padding_mask(memory, memory_lengths)
        if with_heads and isinstance(self.heads, AttendingHeads):
            state.cross_keys_values = EncoderKeysValues(
                state.memory[-1], state.memory_mask, len(memory)
            )
        return state

    def _compute(
        self,
        state: TreeState,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        packing: Packing,
    ) -> NodeOutputs:
        # A node has fewer ancestors than there are nodes.
        places = torch.nn.functional.embedding(positions, self._places(state.num_nodes))
        hidden = (self._embeddings(ids) + places).to(self.dtype)
        return self._through_layers(hidden, state, packing, mask, state)

    def _additive_mask(self, state: TreeState, first: int) -> torch.Tensor:
        if isinstance(self.layers, NativeStack):
            return visible_bits(state.trees, first)
        return super()._additive_mask(state, first)


def pack_layers(layers: Iterable[LayerWeights], precision: Precision) -> LayerStack:
    """Lay layers out for ``extend``; kernels of our own run those of the usual order alone."""
    layers = [*layers]
    usual = all(layer.norm_first and not layer.concat for layer in layers)
    if precision.int8_layers and usual:
        return NativeStack(layers)
    return LayerStack([PackedLayer(layer, precision) for layer in layers])
