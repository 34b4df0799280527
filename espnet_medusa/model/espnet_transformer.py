"""Adapter for ESPnet's ``decoder: transformer``, so that our searches can use it."""

import sys

import torch
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from torch.nn import Dropout, Identity, Linear, ReLU

from espnet_medusa.errors import InputError
from espnet_medusa.model.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.upstream.compat import (
    DecoderLayer,
    LayerNorm,
    LearnableFourierPosEnc,
    MultiHeadedAttention,
    MultiSequential,
    PositionalEncoding,
    PositionwiseFeedForward,
    ScaledPositionalEncoding,
)

TOKEN_SCALES = {  # factor of token embeddings in each positional encoding
    PositionalEncoding: lambda encoding: encoding.xscale,
    ScaledPositionalEncoding: lambda encoding: 1.0,
    LearnableFourierPosEnc: lambda encoding: encoding.xscale,
}
KNOWN_PARTS = {
    TransformerDecoder,
    MultiSequential,
    DecoderLayer,
    MultiHeadedAttention,
    PositionwiseFeedForward,
    LayerNorm,
    Linear,
    Dropout,
    Identity,
    ReLU,
}


class ESPnetTransformerDecoder(torch.nn.Module):
    """Adapter for a ``TransformerDecoder`` without an ``unknown_part``."""

    heads = None
    release = MultiTokenDecoder.release

    def __init__(self, module: TransformerDecoder):
        super().__init__()
        self.module = module

    @property
    def projection(self) -> torch.Tensor:
        """(V, D) vocabulary projection, without its bias."""
        return self.module.output_layer.weight

    def max_depth(self, frames: int) -> int:
        """Return a limit that is never reached: there is no last position."""
        return sys.maxsize

    def draft_vocabulary(self, size: int, eos: int) -> torch.Tensor:
        """Raise an InputError: ESPnet does not count training tokens."""
        raise InputError(
            f"draft_vocab_size: {size}; decoder: transformer has no counts of training tokens; "
            "remove draft_vocab_size"
        )


def searchable(decoder: torch.nn.Module) -> MultiTokenDecoder | ESPnetTransformerDecoder | None:
    """Return a decoder that our searches support: ours, an adapter for ESPnet's, or None."""
    if isinstance(decoder, MultiTokenDecoder):
        return decoder
    return ESPnetTransformerDecoder(decoder) if unknown_part(decoder) is None else None


def unknown_part(decoder: torch.nn.Module) -> str | None:
    """Return the part of a decoder that searches over token trees do not support, or None.

    Classes are compared exactly: a subclass (LoRA, quantized, parametrized) may compute something
    else. Options that change training only, or the attention kernel, are ignored.
    """
    if isinstance(decoder, MultiTokenDecoder):
        return None
    if type(decoder) is not TransformerDecoder:
        return f"decoder: {type(decoder).__name__}"
    embedding, *_, encoding = decoder.embed
    if type(embedding) is not torch.nn.Embedding:
        return "input_layer: linear"
    if type(encoding) not in TOKEN_SCALES:
        return f"pos_enc_class: {type(encoding).__name__}"
    if decoder.output_layer is None:
        return "use_output_layer: false"
    for name, part in decoder.named_modules():
        if type(part) not in KNOWN_PARTS and not name.startswith("embed"):
            return f"decoder.{name}: {type(part).__module__}.{type(part).__name__}"
        if isinstance(part, MultiHeadedAttention) and not isinstance(part.q_norm, Identity):
            return "qk_norm: true"
    return None
