"""Decoders with self-attention over the token tree and cross-attention over the memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable

import torch

from espnet_medusa.model.masks import padding_mask
from espnet_medusa.runtime.layer import LayerStack, LayerWeights, PackedLayer, Packing
from espnet_medusa.runtime.native.layer import NativeStack, visible_bits
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.runtime.tree_runtime import TreeRuntime
from espnet_medusa.tree.node_cache import NodeCache
from espnet_medusa.tree.token_tree import TokenTree
from espnet_medusa.tree.tree_decoder import NodeOutputs, TreeState


class CrossAttentionRuntime(TreeRuntime):
    """A stack of layers over embedded tokens and positions; who inherits sets its parts.

    Attributes:
        layers: Laid out.
        norm: Behind the last of them, (R, D) to (R, D); None where there is none.
        block: The heads' own layer, or None.
    """

    layers: LayerStack
    norm: Callable[[torch.Tensor], torch.Tensor] | None
    block: LayerStack | None = None

    @abstractmethod
    def _places(self, count: int) -> torch.Tensor:
        """What is added to embedded tokens, (count or more, D), by position."""

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
        # A node has fewer ancestors than there are nodes.
        places = torch.nn.functional.embedding(positions, self._places(state.num_nodes))
        hidden = (self._embeddings(ids) + places).to(self.dtype)
        hidden = self.layers.extend(hidden, packing, 0, mask, state)
        hidden = head_input = hidden if self.norm is None else self.norm(hidden)
        if state.with_heads and self.block is not None:
            head_input = self.block.extend(hidden, packing, len(self.layers), mask, state)
        return NodeOutputs(hidden, head_input)

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
