"""How ESPnet's own transformer decoder runs over token trees."""

from __future__ import annotations

import copy

import torch

from espnet_medusa.model.espnet_transformer import TOKEN_SCALES, ESPnetTransformerDecoder
from espnet_medusa.runtime.cross_attention import CrossAttentionRuntime, pack_layers
from espnet_medusa.runtime.layer import AttentionWeights, LayerWeights
from espnet_medusa.runtime.linear import RELU, pack_norm
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.tree.node_cache import GROWTH
from espnet_medusa.upstream.compat import DecoderLayer

FIRST_POSITIONS = 512


class ESPnetTransformerRuntime(CrossAttentionRuntime):
    """The weights of a trained ``TransformerDecoder`` at this moment, without heads.

    Args:
        decoder: Around the trained module.
        precision: What to compute in.
    """

    def __init__(self, decoder: ESPnetTransformerDecoder, precision: Precision):
        module = decoder.module
        embedding, encoding = module.embed
        scale = TOKEN_SCALES[type(encoding)](encoding)
        bias = module.output_layer.bias
        super().__init__(decoder, precision, embedding.weight, scale, bias)
        self.encoding = copy.deepcopy(encoding).eval()
        self.positions = self._encode_positions(FIRST_POSITIONS)
        self.layers = pack_layers([*map(layer_weights, module.decoders)], precision)
        self.norm = pack_norm(module.after_norm, precision) if module.normalize_before else None

    def _places(self, count: int) -> torch.Tensor:
        if count > len(self.positions):
            self.positions = self._encode_positions(max(count, GROWTH * len(self.positions)))
        return self.positions

    def _encode_positions(self, count: int) -> torch.Tensor:
        """(count, D): what ESPnet's module adds to nothing."""
        with torch.no_grad():
            return self.encoding(self.table.new_zeros(1, count, self.table.size(1)))[0]


def layer_weights(layer: DecoderLayer) -> LayerWeights:
    """Of ESPnet's layer."""
    own, cross = layer.self_attn, layer.src_attn
    outputs = own.linear_out, cross.linear_out
    if layer.concat_after:
        concatenated = layer.concat_linear1, layer.concat_linear2
        outputs = [*map(one_product, concatenated, outputs)]
    own_weights, cross_weights = (
        AttentionWeights(norm, part.linear_q, part.linear_k, part.linear_v, output)
        for norm, part, output in zip(
            (layer.norm1, layer.norm2), (own, cross), outputs, strict=True
        )
    )
    return LayerWeights(
        num_heads=own.h,
        own=own_weights,
        cross=cross_weights,
        feed_forward_norm=layer.norm3,
        inner=layer.feed_forward.w_1,
        outer=layer.feed_forward.w_2,
        activation=RELU,
        norm_first=layer.normalize_before,
        concat=layer.concat_after,
    )


@torch.no_grad()
def one_product(concatenated: torch.nn.Linear, output: torch.nn.Linear) -> torch.nn.Linear:
    """``concatenated([x, output(y)])`` as one matrix product of [x, y]; rounded once.

    Args:
        concatenated: (D, 2 D).
        output: (D, D).
    """
    read, found = concatenated.weight.double().chunk(2, dim=1)
    weight = torch.cat([read, found @ output.weight.double()], dim=1)
    bias = concatenated.bias.double() + found @ output.bias.double()
    product = copy.deepcopy(concatenated)
    product.weight.copy_(weight)
    product.bias.copy_(bias)
    return product
