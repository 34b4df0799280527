"""How Whisper's decoder runs over token trees: weights laid out once, no module in the way."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.runtime.cross_attention import CrossAttentionRuntime, pack_layers
from espnet_medusa.runtime.layer import AttentionWeights, LayerStack, LayerWeights
from espnet_medusa.runtime.linear import GELU, pack_norm
from espnet_medusa.runtime.precision import Precision


class WhisperRuntime(CrossAttentionRuntime):
    """Whisper's decoder, with the heads' block if they have one.

    Args:
        decoder: The trained module.
        precision: What to compute in.
    """

    def __init__(self, decoder: WhisperMedusaDecoder, precision: Precision):
        whisper = decoder.whisper
        super().__init__(decoder, precision, whisper.embed_tokens.weight, whisper.embed_scale)
        self.positions = whisper.embed_positions.weight.detach()
        self.layers = pack_whisper_layers(decoder.layers, precision)
        self.norm = pack_norm(whisper.layer_norm, precision)
        if self.heads is not None and self.heads.block is not None:
            self.block = pack_whisper_layers([self.heads.block], precision)

    def _places(self, count: int) -> torch.Tensor:
        return self.positions


def pack_whisper_layers(layers: Iterable[torch.nn.Module], precision: Precision) -> LayerStack:
    """``transformers`` WhisperDecoderLayers laid out for ``extend``."""
    return pack_layers([*map(whisper_weights, layers)], precision)


def whisper_weights(layer: torch.nn.Module) -> LayerWeights:
    """Of a ``transformers`` WhisperDecoderLayer."""
    own, cross = (
        AttentionWeights(norm, part.q_proj, part.k_proj, part.v_proj, part.out_proj)
        for norm, part in (
            (layer.self_attn_layer_norm, layer.self_attn),
            (layer.encoder_attn_layer_norm, layer.encoder_attn),
        )
    )
    last = layer.final_layer_norm, layer.fc1, layer.fc2
    return LayerWeights(layer.self_attn.num_heads, own, cross, *last, GELU)
