"""ESPnet's own ``decoder: transformer`` for searches over token trees: the module as it is."""

import sys

import torch
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from torch.nn import Dropout, Identity, Linear, ReLU

from espnet_medusa.compat import (
    DecoderLayer,
    LayerNorm,
    MultiHeadedAttention,
    MultiSequential,
    PositionwiseFeedForward,
)
from espnet_medusa.errors import InputError
from espnet_medusa.runtime.espnet_scorer import TreeScorer
from espnet_medusa.runtime.espnet_transformer import TOKEN_SCALES, ESPnetTransformerRuntime
from espnet_medusa.runtime.precision import resolve_precision

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


class ESPnetTransformerDecoder(torch.nn.Module, TreeScorer):
    """A trained ``TransformerDecoder`` as searches know our own: the same weights, no heads.

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

    def runtime(
        self, precision: str | None = None, lasting: bool = True
    ) -> ESPnetTransformerRuntime:
        """The decoder over token trees; weights that change later do not reach it.

        Args:
            precision: As the decode option ``decoder_precision``; None: the weights' own.
            lasting: Whether many searches will use it; here all the same.

        Raises:
            InputError: Nothing this device computes with.
        """
        weight = self.projection
        precision = resolve_precision(precision, weight.device, weight.dtype)
        return ESPnetTransformerRuntime(self, precision)

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


def tree_scorer_of(decoder: torch.nn.Module) -> TreeScorer | None:
    """What gives a trained decoder to searches: itself, an adapter around ESPnet's, or None."""
    if isinstance(decoder, TreeScorer):
        return decoder
    return ESPnetTransformerDecoder(decoder) if unknown_part(decoder) is None else None


def unknown_part(decoder: torch.nn.Module) -> str | None:
    """What keeps a decoder from searches over token trees; None when nothing does.

    Whole classes are compared: a subclass (LoRA, quantized, parametrized) computes something else.
    Options of training alone (dropout, layer drop, gradient checkpoints) do not matter, nor does
    who computes attention.
    """
    if isinstance(decoder, TreeScorer):
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
