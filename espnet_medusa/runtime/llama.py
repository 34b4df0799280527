"""How a Speech-LLaMA runs over token trees.

The speech embeddings are a prefix of every path: their keys and values are computed once and
stored once, before those of the nodes.
"""

from __future__ import annotations

import copy

import torch

from espnet_medusa.model.llama_decoder import SpeechLlamaDecoder
from espnet_medusa.model.masks import causal_mask, padding_mask
from espnet_medusa.runtime.layer import Packing
from espnet_medusa.runtime.linear import pack_module
from espnet_medusa.runtime.llama_layer import RootMeanSquareNorm, Rotation, pack_llama_layers
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.runtime.tree_runtime import TreeRuntime
from espnet_medusa.tree.tree_decoder import NodeOutputs, TreeState


class LlamaRuntime(TreeRuntime):
    """Layers with self-attention over the speech embeddings and the tree.

    Args:
        decoder: The trained module.
        precision: What to compute in.
    """

    def __init__(self, decoder: SpeechLlamaDecoder, precision: Precision):
        llama = decoder.llama.model
        super().__init__(decoder, precision, llama.embed_tokens.weight)
        self.adapter = decoder.adapter
        self.adapter_product = pack_module(decoder.adapter.linear, precision)
        self.rotary = copy.deepcopy(llama.rotary_emb)
        self.layers = pack_llama_layers(decoder.layers, precision)
        self.norm = RootMeanSquareNorm(llama.norm, precision.dtype)
        if self.heads is not None and self.heads.block is not None:
            self.block = pack_llama_layers([self.heads.block], precision)

    def start(
        self, memory: torch.Tensor, memory_lengths: torch.Tensor, with_heads: bool = True
    ) -> TreeState:
        stacked = self.adapter.stack(memory.to(self.dtype), memory_lengths)
        lengths = self.adapter.lengths(memory_lengths)
        shape, layer = stacked.shape[:2], self.layers[0]
        padding = padding_mask(stacked, lengths)
        mask = causal_mask(shape[1], stacked)
        if padding is not None:
            mask = torch.minimum(mask, padding)
        state = self._empty_state(len(memory), (layer.num_groups, layer.head_size), with_heads)
        state.memory_mask, state.offsets = padding, lengths.tolist()
        state.cache.reserve(shape[1])
        positions = torch.arange(shape[1], device=self.device).repeat(len(memory))
        hidden = self.adapter_product(stacked.flatten(0, 1))
        self._run(hidden, positions, Packing([shape[1]] * shape[0], None), mask, state)
        state.cache.commit_prefix(shape[1])
        return state

    def _compute(
        self,
        state: TreeState,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        packing: Packing,
    ) -> NodeOutputs:
        return self._run(self.embed_tokens(ids), positions, packing, mask, state)

    def _run(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        packing: Packing,
        mask: torch.Tensor | None,
        state: TreeState,
    ) -> NodeOutputs:
        """All layers over (R, D) at positions (R,)."""
        cos, sin = self.rotary(hidden, positions[None])
        rotation = Rotation(cos[0, :, None], sin[0, :, None])
        return self._through_layers(hidden, state, packing, mask, state.cache, rotation)

    def _mask(self, state: TreeState, first: int) -> torch.Tensor | None:
        """Over speech embeddings, then nodes."""
        mask, padding = super()._mask(state, first), state.memory_mask
        if mask is None and padding is None:
            return None
        num_speech, width = state.cache.num_prefix, state.num_nodes - first
        if mask is None:
            shape = len(state.trees), 1, width, state.num_nodes
            mask = torch.zeros(shape, dtype=self.dtype, device=self.device)
        if padding is None:
            return torch.nn.functional.pad(mask, (num_speech, 0))
        return torch.cat([padding.expand(-1, -1, width, -1), mask], dim=-1)
