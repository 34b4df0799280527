"""Runtime of the Speech-LLaMA decoder.

Speech embeddings are a prefix of every path; their keys and values are cached before the nodes'.
"""

import copy
from collections.abc import Iterable

import torch

from espnet_medusa.data.threads import lock_of
from espnet_medusa.decoding.runtime.layer import LayerStack, NewNodes, Packing, attend, join
from espnet_medusa.decoding.runtime.linear import pack_linear, pack_module
from espnet_medusa.decoding.runtime.precision import Precision
from espnet_medusa.decoding.runtime.tree_runtime import TreeRuntime
from espnet_medusa.decoding.tree.node_cache import NodeCache
from espnet_medusa.decoding.tree.tree_decoder import NodeOutputs, TreeState
from espnet_medusa.networks.llama_decoder import SpeechLlamaDecoder
from espnet_medusa.networks.masks import causal_mask, padding_mask


class LlamaRuntime(TreeRuntime):
    """Layers with self-attention over speech embeddings and the token tree."""

    def __init__(self, decoder: SpeechLlamaDecoder, precision: Precision):
        llama = decoder.llama.model
        super().__init__(decoder, precision, llama.embed_tokens.weight)
        self.adapter = decoder.adapter
        self.adapter_linear = pack_module(decoder.adapter.linear, precision)
        self.rotary = copy.deepcopy(llama.rotary_emb)
        self.layers = pack_llama_layers(decoder.layers, precision)
        self.norm = RootMeanSquareNorm(llama.norm, precision.dtype)
        if self.heads is not None and self.heads.block is not None:
            self.block = pack_llama_layers([self.heads.block], precision)

    def start(self, encoder_out, encoder_out_lens, with_heads=True) -> TreeState:
        stacked = self.adapter.stack(encoder_out.to(self.dtype), encoder_out_lens)
        lengths = self.adapter.lengths(encoder_out_lens)
        shape, layer = stacked.shape[:2], self.layers[0]
        padding = padding_mask(stacked, lengths)
        mask = causal_mask(shape[1], stacked)
        if padding is not None:
            mask = torch.minimum(mask, padding)
        state = self._empty_state(len(encoder_out), (layer.num_groups, layer.head_size), with_heads)
        state.encoder_out_mask, state.offsets = padding, lengths.tolist()
        state.cache.reserve(shape[1])
        positions = torch.arange(shape[1], device=self.device).repeat(len(encoder_out))
        nodes = NewNodes(positions, positions, mask, Packing([shape[1]] * shape[0], None))
        self._run(self.adapter_linear(stacked.flatten(0, 1)), state, nodes)
        state.cache.num_prefix = shape[1]  # after all layers have written it
        return state

    def _compute(self, state: TreeState, nodes: NewNodes) -> NodeOutputs:
        return self._run(self.embed_tokens(nodes.ids), state, nodes)

    def _run(self, hidden: torch.Tensor, state: TreeState, nodes: NewNodes) -> NodeOutputs:
        with lock_of(self.rotary):  # some kinds recompute their frequencies
            cos, sin = self.rotary(hidden, nodes.positions[None])
        rotation = cos[0, :, None], sin[0, :, None]
        return self._through_layers(hidden, state, nodes, state.cache, rotation)

    def _mask(self, state: TreeState, first: int) -> torch.Tensor | None:
        """Return the additive mask (U, 1, T, S + N) over speech embeddings, then nodes."""
        mask, padding = super()._mask(state, first), state.encoder_out_mask
        if mask is None and padding is None:
            return None
        num_speech, width = state.cache.num_prefix, state.num_nodes - first
        if mask is None:
            shape = len(state.trees), 1, width, state.num_nodes
            mask = torch.zeros(shape, dtype=self.dtype, device=self.device)
        if padding is None:
            return torch.nn.functional.pad(mask, (num_speech, 0))
        return torch.cat([padding.expand(-1, -1, width, -1), mask], dim=-1)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs of elements i and i + size / 2 of (R, heads, size) by angles (R, 1, size)."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin


class RootMeanSquareNorm:
    """RMS normalization to ``dtype``; squares are averaged in float32 or better."""

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype):
        self.weight, self.eps = module.weight.detach().to(dtype, copy=True), module.variance_epsilon
        self.exact = torch.promote_types(dtype, torch.float32)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (R, D) to (R, D)."""
        exact = hidden.to(self.exact)
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.eps)
        return (exact * scale).to(hidden.dtype) * self.weight


class PackedLlamaLayer:
    """A LLaMA decoder layer with a packed copy of its weights; low-rank adapters are merged.

    Queries, keys and values are one matrix product, as are both inputs of the gated layer.
    """

    def __init__(self, layer: torch.nn.Module, precision: Precision):
        attention, gated, dtype = layer.self_attn, layer.mlp, precision.dtype
        self.head_size = attention.head_dim
        self.num_heads = attention.config.num_attention_heads
        self.num_groups = attention.config.num_key_value_heads
        self.norm = RootMeanSquareNorm(layer.input_layernorm, dtype)
        joined = map(merge_adapter, (attention.q_proj, attention.k_proj, attention.v_proj))
        self.queries_keys_values = pack_linear(*join(*joined), precision)
        self.output = pack_module(merge_adapter(attention.o_proj), precision)
        self.gated_norm = RootMeanSquareNorm(layer.post_attention_layernorm, dtype)
        joined = map(merge_adapter, (gated.gate_proj, gated.up_proj))
        self.gate_inner = pack_linear(*join(*joined), precision)
        self.outer = pack_module(merge_adapter(gated.down_proj), precision)

    def extend(
        self,
        hidden: torch.Tensor,
        nodes: NewNodes,
        index: int,
        cache: NodeCache,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Compute the layer for new nodes (R, D); ``cache`` gets their keys and values.

        ``index`` is the layer's index in the cache, ``rotation`` the arguments of ``rotate``.
        """
        packing = nodes.packing
        heads = self.queries_keys_values(self.norm(hidden)).unflatten(-1, (-1, self.head_size))
        queries_keys, values = heads.tensor_split([-self.num_groups], dim=1)
        rotated = torch.cat([rotate(queries_keys, *rotation), values], dim=1)
        padded = packing.unpack(rotated.flatten(1), -1, self.head_size)
        queries, keys_values = padded.split([self.num_heads, 2 * self.num_groups], dim=2)
        keys_values = cache.write(index, keys_values.unflatten(2, (2, self.num_groups)))
        hidden = self.output(packing.pack(attend(queries, keys_values, nodes.mask)), hidden)
        gate, inner = self.gate_inner(self.gated_norm(hidden)).chunk(2, dim=-1)
        return self.outer(torch.nn.functional.silu(gate) * inner, hidden)


def pack_llama_layers(layers: Iterable[torch.nn.Module], precision: Precision) -> LayerStack:
    return LayerStack([PackedLlamaLayer(layer, precision) for layer in layers])


@torch.no_grad()
def merge_adapter(module: torch.nn.Module) -> torch.nn.Linear:
    """Return a linear layer, or a copy of it with the low-rank adapter of peft added."""
    if not hasattr(module, "get_delta_weight"):
        return module
    merged = copy.deepcopy(module.get_base_layer())
    merged.weight += sum(module.get_delta_weight(name) for name in module.active_adapters)
    return merged
