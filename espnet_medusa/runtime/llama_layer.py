"""One LLaMA-shaped decoder layer over new nodes, with cached keys and values (inference)."""

from collections.abc import Iterable
from typing import NamedTuple

import torch

from espnet_medusa.runtime.layer import LayerStack, Packing, attend
from espnet_medusa.runtime.linear import pack_linear
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.tree.node_cache import NodeCache


class Rotation(NamedTuple):
    """Rotary embeddings of R positions, (R, 1, head_size) each."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """Turn (R, heads, head_size): the first half of a head against the second."""
        first, second = heads.chunk(2, dim=-1)
        return heads * self.cos + torch.cat([-second, first], dim=-1) * self.sin


class RootMeanSquareNorm:
    """RMS normalization; squares are summed in float32.

    Args:
        module: Its weights.
        dtype: Of what it returns.
    """

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype):
        self.weight, self.eps = module.weight.detach().to(dtype, copy=True), module.variance_epsilon
        self.exact = torch.promote_types(dtype, torch.float32)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, D) to (R, D)."""
        exact = hidden.to(self.exact)
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.eps)
        return (exact * scale).to(hidden.dtype) * self.weight


class PackedLlamaLayer:
    """A layer with weights laid out for ``extend``; low-rank adapters are merged.

    Queries, keys and values are one matrix product, as are both halves of the gated layer.

    Args:
        layer: transformers' LlamaDecoderLayer, or one of the same shape; copied.
        precision: What to compute in.
    """

    def __init__(self, layer: torch.nn.Module, precision: Precision):
        own, gated, dtype = layer.self_attn, layer.mlp, precision.dtype
        self.head_size = own.head_dim
        self.num_heads = own.config.num_attention_heads
        self.num_groups = own.config.num_key_value_heads
        self.norm = RootMeanSquareNorm(layer.input_layernorm, dtype)
        self.queries_keys_values = pack_linear(
            *_join(own.q_proj, own.k_proj, own.v_proj), precision
        )
        self.output = pack_linear(*_join(own.o_proj), precision)
        self.gated_norm = RootMeanSquareNorm(layer.post_attention_layernorm, dtype)
        self.gate_inner = pack_linear(*_join(gated.gate_proj, gated.up_proj), precision)
        self.outer = pack_linear(*_join(gated.down_proj), precision)

    def extend(
        self,
        hidden: torch.Tensor,
        packing: Packing,
        index: int,
        mask: torch.Tensor | None,
        cache: NodeCache,
        rotation: Rotation,
    ) -> torch.Tensor:
        """Run the layer on new nodes.

        Args:
            hidden: (R, D), packed.
            packing: Where the R nodes stand among (U, T).
            index: The layer's place in the cache.
            mask: (U, 1, T, S + N + T) additive, who attends to whom; None: everybody to all.
            cache: Gets the layer's new keys and values.
            rotation: Of the nodes' positions.

        Returns:
            (R, D).
        """
        heads = self.queries_keys_values(self.norm(hidden)).unflatten(-1, (-1, self.head_size))
        queries, keys, values = heads.split([self.num_heads, *[self.num_groups] * 2], dim=1)
        turned = torch.cat([rotation(queries), rotation(keys), values], dim=1)
        padded = packing.unpack(turned.flatten(1)).unflatten(-1, (-1, self.head_size))
        queries, keys_values = padded.split([self.num_heads, 2 * self.num_groups], dim=2)
        keys_values = cache.write(index, keys_values.unflatten(2, (2, self.num_groups)))
        attended = packing.pack(attend(queries, keys_values, mask))
        hidden = self.output(attended, hidden)
        gate, inner = self.gate_inner(self.gated_norm(hidden)).chunk(2, dim=-1)
        return self.outer(torch.nn.functional.silu(gate) * inner, hidden)


def pack_llama_layers(layers: Iterable[torch.nn.Module], precision: Precision) -> LayerStack:
    """Lay layers out for ``extend``."""
    return LayerStack([PackedLlamaLayer(layer, precision) for layer in layers])


def _join(*modules: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weights and biases of several matrix products with one input as those of one."""
    parts = [_merged(module) for module in modules]
    weight = torch.cat([weight for weight, _ in parts])
    biases = [bias for _, bias in parts if bias is not None]
    return weight, torch.cat(biases) if biases else None


def _merged(module: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias, with what a low-rank adapter of peft adds."""
    if not hasattr(module, "get_delta_weight"):
        return module.weight, module.bias
    base = module.get_base_layer()
    weight = base.weight + sum(module.get_delta_weight(name) for name in module.active_adapters)
    return weight, base.bias
