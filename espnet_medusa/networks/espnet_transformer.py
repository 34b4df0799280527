"""ESPnet's ``decoder: transformer`` with Medusa heads, or without heads for our searches."""

import inspect
import sys
from typing import Any

import torch
from espnet2.asr.decoder.transformer_decoder import TransformerDecoder
from torch.nn import Dropout, Identity, Linear, ReLU

from espnet_medusa.data.errors import InputError
from espnet_medusa.networks import espnet_compat as compat
from espnet_medusa.networks.heads import (
    HEAD_TYPES,
    NO_HEADS,
    AttendingHeads,
    ProjectionHeads,
    Trunk,
)
from espnet_medusa.networks.masks import causal_mask, inside
from espnet_medusa.networks.multi_token_decoder import HiddenStates, MultiTokenDecoder
from espnet_medusa.networks.whisper_modules import WhisperLayer

TOKEN_SCALES = {  # factor of token embeddings in each positional encoding
    compat.PositionalEncoding: lambda encoding: encoding.xscale,
    compat.ScaledPositionalEncoding: lambda encoding: 1.0,
    compat.LearnableFourierPosEnc: lambda encoding: encoding.xscale,
}
KNOWN_PARTS = {
    TransformerDecoder,
    compat.MultiSequential,
    compat.DecoderLayer,
    compat.MultiHeadedAttention,
    compat.PositionwiseFeedForward,
    compat.LayerNorm,
    Linear,
    Dropout,
    Identity,
    ReLU,
}
ESPNET_OPTIONS = inspect.signature(TransformerDecoder.__init__).parameters
ESPNET_PARTS = "embed", "decoders", "after_norm", "output_layer"  # modules with weights
# Modules of the layer of attending heads, and of ESPnet's layer.
NAMES = {
    "encoder_attn.q_proj": "src_attn.linear_q",
    "encoder_attn.out_proj": "src_attn.linear_out",
    "encoder_attn_layer_norm": "norm2",
    "fc1": "feed_forward.w_1",
    "fc2": "feed_forward.w_2",
    "final_layer_norm": "norm3",
}


class TransformerMedusaDecoder(MultiTokenDecoder):
    """``decoder: transformer`` with Medusa heads, for the tasks asr and s2t.

    Attending heads have Whisper's layer with GELU, which starts with the weights of the decoder's
    last layer. Raise InputError if an option has an unknown name or value.

    Args:
        encoder_output_size: D of the encoder output.
        heads: none, linear, block, recurrent, attending or latent.
        heads_conf: Fields of ``HeadOptions``.
        draft_conf: By search (greedy, beam): defaults of draft options in decode configs.
        options: ESPnet's options of ``decoder: transformer``.
    """

    network = "transformer"
    layers_name = "transformer.decoders"
    original_last_layer = None

    def __init__(
        self,
        vocab_size: int,
        encoder_output_size: int,
        heads: str = NO_HEADS,
        heads_conf: dict[str, Any] | None = None,
        draft_conf: dict[str, Any] | None = None,
        **options,
    ):
        unknown = sorted({*options} - {*ESPNET_OPTIONS})
        if unknown:
            allowed = "heads, heads_conf, draft_conf and the options of decoder: transformer"
            raise InputError(f"decoder_conf.{unknown[0]}: no such option; allowed: {allowed}")
        if rate := options.get("layer_drop_rate"):
            raise InputError(f"decoder_conf.layer_drop_rate: {rate}; allowed: 0.0")
        self._wrap(TransformerDecoder(vocab_size, encoder_output_size, **options))
        reason = unknown_part(self.transformer)
        if reason is not None:
            raise InputError(f"decoder_conf: {reason}; not allowed with transformer_medusa")
        kind, last_layer = HEAD_TYPES.get(heads), self.layers[-1]
        if kind is ProjectionHeads:
            allowed = "none, linear, block, recurrent, attending, latent"
            raise InputError(f"decoder_conf.heads: {heads}; transformer_medusa allows {allowed}")
        if kind is AttendingHeads:
            if last_layer.concat_after:
                raise InputError("decoder_conf.concat_after: true; heads: attending need false")
            last_layer = whisper_layer(last_layer)
        norm = self.norm if self.transformer.normalize_before else None
        trunk = Trunk(encoder_output_size, vocab_size, last_layer, norm)
        self._add_heads(heads, heads_conf or {}, trunk)

    def _wrap(self, transformer: TransformerDecoder) -> None:
        MultiTokenDecoder.__init__(self)
        self.transformer, self.heads = transformer, None

    @classmethod
    def without_heads(cls, transformer: TransformerDecoder) -> "TransformerMedusaDecoder":
        """Wrap a decoder without an ``unknown_part``; weights are shared."""
        decoder = cls.__new__(cls)
        decoder._wrap(transformer)
        return decoder

    @property
    def conf(self) -> dict:
        return {}

    @property
    def norm(self) -> torch.nn.Module:
        return self.transformer.after_norm if self.transformer.normalize_before else Identity()

    @property
    def projection(self) -> torch.Tensor:
        return self.transformer.output_layer.weight

    @property
    def projection_bias(self) -> torch.Tensor:
        return self.transformer.output_layer.bias

    def max_depth(self, frames: int) -> int:
        """Return a limit that is never reached: there is no last position."""
        return sys.maxsize

    def embed_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        embedding, encoding = self.transformer.embed
        return embedding(tokens) * TOKEN_SCALES[type(encoding)](encoding)

    def hidden_states(self, encoder_out, encoder_out_lens, tokens, branches=1) -> HiddenStates:
        sequences = tokens.unflatten(1, (branches, -1)).flatten(0, 1)
        hidden = self.transformer.embed(sequences).unflatten(0, (-1, branches)).flatten(1, 2)
        causal = causal_mask(sequences.size(1), hidden, branches)[0] == 0
        visible = inside(encoder_out, encoder_out_lens)[:, None]

        def run(layer: compat.DecoderLayer, hidden: torch.Tensor) -> torch.Tensor:
            return layer(hidden, causal, encoder_out, visible)[0]

        return self._through_layers(hidden, run, encoder_out, encoder_out_lens)

    @property
    def cross_projections(self) -> tuple[int, torch.nn.Module, torch.nn.Module]:
        attention = self.layers[-1].src_attn
        return attention.h, attention.linear_k, attention.linear_v

    def rename_weights(self, weights: dict[str, torch.Tensor], prefix: str, *_) -> None:
        for name in [*weights]:
            part = name.removeprefix(prefix)
            if name.startswith(prefix) and part.split(".")[0] in ESPNET_PARTS:
                weights[f"{prefix}{self.network}.{part}"] = weights.pop(name)

    def last_layer_name(self, name: str) -> str:
        module, _, kind = name.rpartition(".")
        return f"{NAMES.get(module, module)}.{kind}"


def whisper_layer(layer: compat.DecoderLayer) -> WhisperLayer:
    """Return a WhisperLayer with those weights of ESPnet's layer that attending heads use."""
    inner, size = layer.feed_forward.w_1.weight.shape
    copied = WhisperLayer(size, layer.src_attn.h, inner, 0.0, cross_attention=True)
    for whisper, espnet in NAMES.items():
        copied.get_submodule(whisper).load_state_dict(layer.get_submodule(espnet).state_dict())
    return copied


# ``decoder`` in configs of the decoders that ``searchable`` supports.
SEARCHABLE = "whisper_medusa, speech_llama, transformer or transformer_medusa"


def searchable(decoder: torch.nn.Module) -> MultiTokenDecoder | None:
    """Return a decoder for our searches: ours, or ESPnet's wrapped; None if not supported."""
    if isinstance(decoder, MultiTokenDecoder):
        return decoder
    return None if unknown_part(decoder) else TransformerMedusaDecoder.without_heads(decoder)


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
        if isinstance(part, compat.MultiHeadedAttention) and not isinstance(part.q_norm, Identity):
            return "qk_norm: true"
    return None
