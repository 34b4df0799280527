"""Whisper's encoder with the native kernels."""

from ctypes import addressof, c_int64

import torch

from espnet_medusa.data.encoder_rows import row_counts
from espnet_medusa.decoding.runtime.layer import join
from espnet_medusa.decoding.runtime.linear import GELU
from espnet_medusa.decoding.runtime.native.library import (
    EncoderLayerArguments,
    FramesArguments,
    address,
    call_kernel,
    kernels,
)
from espnet_medusa.decoding.runtime.native.operations import (
    NativeBfloat16Linear,
    NativeLinear,
    NativeNorm,
    multiply_rows,
)
from espnet_medusa.networks.masks import padding_mask
from espnet_medusa.networks.merged_padding import drop_equal_frames, window_rows
from espnet_medusa.networks.whisper_modules import WhisperEncoder, WhisperLayer

Linear = type[NativeLinear] | type[NativeBfloat16Linear]


class NativeEncoder:
    """Convolutions, layers and norm of Whisper's encoder.

    Products are in 8-bit integers or bfloat16 (``kind``), attention is in bfloat16 or 16-bit
    integers, the rest in float32. Weights are copied.
    """

    def __init__(self, whisper: WhisperEncoder, kind: Linear):
        self.stem = NativeStem(whisper, kind)
        self.layers = [NativeEncoderLayer(layer, kind) for layer in whisper.layers]
        self.norm = NativeNorm(whisper.layer_norm)
        array = EncoderLayerArguments * len(self.layers)
        self.arguments = array(*(layer.arguments for layer in self.layers))
        self.num_heads = whisper.config.encoder_attention_heads

    def __call__(self, features, frames, kept=None) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute ``HFWhisperEncoder.encode``."""
        hidden, lengths = self.stem(features, frames, kept)
        self._run_layers(hidden, lengths)
        return hidden, lengths

    def _run_layers(self, hidden: torch.Tensor, lengths: torch.Tensor) -> None:
        """Apply layers and norm to (B, S, D) in place."""
        num_utterances, num_rows, width = hidden.shape
        head_size = width // self.num_heads
        mask = padding_mask(hidden, lengths) if lengths.dim() == 2 else None
        lengths = (c_int64 * num_utterances)(*row_counts(lengths).tolist())
        call = FramesArguments(
            *(num_utterances, num_rows, self.num_heads, head_size, addressof(lengths)),
            *(address(mask), torch.get_num_threads()),
        )
        num_bytes = kernels().cross_bytes(num_rows, head_size)
        queries = torch.empty_like(hidden)
        packed = torch.empty(num_utterances, self.num_heads, num_bytes, dtype=torch.uint8)
        weights = self.arguments, len(self.layers), self.norm.arguments
        call_kernel("encode_layers", *weights, call, hidden, queries, packed)


class NativeEncoderLayer:
    """An encoder layer with a packed copy of its weights."""

    def __init__(self, layer: WhisperLayer, kind: Linear):
        attention = layer.self_attn
        self.parts = [
            *map(NativeNorm, (layer.self_attn_layer_norm, layer.final_layer_norm)),
            kind(*join(attention.q_proj, attention.k_proj, attention.v_proj)),
            kind(attention.out_proj.weight, attention.out_proj.bias),
            kind(layer.fc1.weight, layer.fc1.bias, GELU),
            kind(layer.fc2.weight, layer.fc2.bias),
        ]
        self.arguments = EncoderLayerArguments(*(part.arguments for part in self.parts))


class NativeStem:
    """Two convolutions and position embeddings.

    The output for padding is computed once (``drop_equal_frames``); the result is bitwise the same.
    """

    def __init__(self, whisper: WhisperEncoder, kind: Linear):
        self.convolutions = [NativeConvolution(one, kind) for one in (whisper.conv1, whisper.conv2)]
        self.subsampling = self.convolutions[0].stride * self.convolutions[1].stride
        self.positions = whisper.embed_positions.weight.detach().to(torch.float32, copy=True)

    def __call__(self, features, frames, kept=None) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the input of the layers and its lengths, as in ``HFWhisperEncoder.encode``."""
        hidden, lengths, copies = drop_equal_frames(features.float(), frames, self.subsampling)
        for convolution in self.convolutions:
            hidden = convolution(hidden)
            lengths = (lengths - 1) // convolution.stride + 1
            if int(lengths.min()) < hidden.size(1):
                padding = torch.arange(hidden.size(1)) >= lengths[:, None]
                hidden.masked_fill_(padding[:, :, None], 0.0)
        return window_rows(hidden, lengths, copies, self.positions, kept)


class NativeConvolution:
    """A convolution over time with GELU, as a matrix product of overlapping rows.

    The module pads by half its kernel; its weights are copied.
    """

    def __init__(self, module: torch.nn.Conv1d, kind: Linear):
        weight = module.weight.transpose(1, 2).flatten(1)  # (outputs, kernel * inputs)
        self.product = kind(weight, module.bias, GELU)
        self.stride, self.padding = module.stride[0], module.padding[0]
        self.kernel_size = module.kernel_size[0]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (B, T, D) to (B, T', M), with the module's T'."""
        size = hidden.size(-1)
        padded = torch.nn.functional.pad(hidden, (0, 0, self.padding, self.padding)).contiguous()
        frames = (padded.size(1) - self.kernel_size) // self.stride + 1
        rows = (frames, self.kernel_size * size), (self.stride * size, 1)
        products = [multiply_rows(self.product, each.as_strided(*rows)) for each in padded]
        return torch.stack(products) if len(products) > 1 else products[0][None]
