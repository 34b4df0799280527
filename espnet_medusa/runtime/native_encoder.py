"""Whisper's encoder in kernels of our own (CPU, inference)."""

from __future__ import annotations

from ctypes import addressof, c_int64

import torch
from transformers.models.whisper.modeling_whisper import WhisperEncoder, WhisperEncoderLayer

from espnet_medusa.runtime.layer import join
from espnet_medusa.runtime.linear import GELU
from espnet_medusa.runtime.native.library import EncoderLayerArguments, FramesArguments, kernels
from espnet_medusa.runtime.native.norm import NativeNorm
from espnet_medusa.runtime.native_stem import Linear, NativeStem


class NativeEncoder:
    """Stem, layers and norm of Whisper's encoder.

    Products are in 8-bit integers or bfloat16, attention is in bfloat16, all else in float32.

    Args:
        whisper: The trained module; copied.
        kind: Of the products.
    """

    def __init__(self, whisper: WhisperEncoder, kind: Linear):
        self.stem = NativeStem(whisper, kind)
        self.layers = [NativeEncoderLayer(layer, kind) for layer in whisper.layers]
        self.norm = NativeNorm(whisper.layer_norm)
        self.arguments = (EncoderLayerArguments * len(self.layers))(
            *(layer.arguments for layer in self.layers)
        )
        self.num_heads = whisper.config.encoder_attention_heads

    def __call__(
        self, features: torch.Tensor, frames: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (B, T, bins) and frames (B,) to memory (B, S, D) and its frames (B,)."""
        hidden, lengths = self.stem(features, frames)
        self._through_layers(hidden, lengths)
        return hidden, lengths

    def _through_layers(self, hidden: torch.Tensor, lengths: torch.Tensor) -> None:
        """Layers and norm, (B, S, D) in place."""
        num_utterances, num_frames, width = hidden.shape
        head_size = width // self.num_heads
        seen = (c_int64 * num_utterances)(*lengths.tolist())
        call = FramesArguments(
            *(num_utterances, num_frames, self.num_heads, head_size, addressof(seen)),
            torch.get_num_threads(),
        )
        num_bytes = kernels().memory_bytes(num_frames, head_size)
        joined = torch.empty(num_utterances * num_frames, 3 * width)
        packed = torch.empty(num_utterances, self.num_heads, num_bytes, dtype=torch.uint8)
        kernels().encode_layers(
            *(self.arguments, len(self.layers), self.norm.arguments, call),
            *(hidden.data_ptr(), joined.data_ptr(), packed.data_ptr()),
        )


class NativeEncoderLayer:
    """A layer's weights as the kernels read them.

    Args:
        layer: Copied.
        kind: Of the products.
    """

    def __init__(self, layer: WhisperEncoderLayer, kind: Linear):
        own = layer.self_attn
        self.norms = [*map(NativeNorm, (layer.self_attn_layer_norm, layer.final_layer_norm))]
        self.linears = [
            kind(*join(own.q_proj, own.k_proj, own.v_proj)),
            kind(own.out_proj.weight, own.out_proj.bias),
            kind(layer.fc1.weight, layer.fc1.bias, GELU),
            kind(layer.fc2.weight, layer.fc2.bias),
        ]
        self.arguments = EncoderLayerArguments(
            *(part.arguments for part in self.norms + self.linears)
        )
