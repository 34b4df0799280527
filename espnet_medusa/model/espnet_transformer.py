"""ESPnet's own ``decoder: transformer`` as our runtime reads it: the module as it is."""

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

TOKEN_SCALES = {  # what each positional encoding multiplies token embeddings with
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
    """A trained ``TransformerDecoder`` with the face of our own: the same weights, no heads.

    Args:
        module: One in which ``unknown_part`` finds nothing.

    Attributes:
        heads: None: what drafts has to come from elsewhere.
    """

    heads = None

    def __init__(self, module: TransformerDecoder):
        super().__init__()
        self.module = module

    @property
    def projection(self) -> torch.Tensor:
        """(V, D) vocabulary projection; it has a bias, too."""
        return self.module.output_layer.weight

    def max_depth(self, frames: int) -> int:
        """Sinusoids have no last position."""
        return sys.maxsize

    def draft_vocabulary(self, size: int, eos: int) -> torch.Tensor:
        """There is none: nobody counted tokens in training.

        Raises:
            InputError: Always.
        """
        raise InputError(
            f"draft_vocab_size: {size}; decoder: transformer holds no counts of training tokens; "
            "leave draft_vocab_size out"
        )

    def release(self) -> None:
        """Give back the memory of weights: runtimes hold what they need themselves."""
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.data = tensor.new_empty(0)


def searchable(decoder: torch.nn.Module) -> MultiTokenDecoder | ESPnetTransformerDecoder | None:
    """A trained decoder for our searches: itself, an adapter around ESPnet's, or None."""
    if isinstance(decoder, MultiTokenDecoder):
        return decoder
    return ESPnetTransformerDecoder(decoder) if unknown_part(decoder) is None else None


def unknown_part(decoder: torch.nn.Module) -> str | None:
    """What keeps a decoder from searches over token trees; None when nothing does.

    Whole classes are compared: a subclass (LoRA, quantized, parametrized) computes something else.
    Options of training alone (dropout, layer drop, gradient checkpoints) do not matter, nor does
    who computes attention.
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
