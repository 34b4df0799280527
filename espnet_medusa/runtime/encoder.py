"""Runtime of Whisper's encoder in other precisions than the module's."""

import copy
from typing import Protocol

import torch

from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.runtime.native.library import kernels
from espnet_medusa.runtime.native.operations import NativeBfloat16Linear, NativeLinear
from espnet_medusa.runtime.native_encoder import NativeEncoder
from espnet_medusa.runtime.precision import (
    BFLOAT16,
    INT8,
    check_precision,
    has_bfloat16_instructions,
    log_bfloat16_support,
)

OPTION = "encoder_precision"


class EncoderRuntime(Protocol):
    """Whisper's encoder after the features."""

    def __call__(
        self, features: torch.Tensor, frames: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode features (B, T, bins) of (B,) frames: (B, S, D) and its (B,) frames."""

    def encode_merged(
        self, features: torch.Tensor, frames: torch.Tensor, speech: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode with merged padding, as ``HFWhisperEncoder.encode_merged``."""


class CastEncoder:
    """A copy of the encoder in ``dtype``; its output has the original dtype."""

    def __init__(self, encoder: HFWhisperEncoder, dtype: torch.dtype):
        self.output_dtype = encoder.whisper.conv1.weight.dtype
        self.encoder = copy.deepcopy(encoder).to(dtype).eval()

    def __call__(
        self, features: torch.Tensor, frames: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        memory, lengths, _ = self.encoder(features, frames)
        return memory.to(self.output_dtype), lengths

    def encode_merged(
        self, features: torch.Tensor, frames: torch.Tensor, speech: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Call ``HFWhisperEncoder.encode_merged``."""
        memory, lengths = self.encoder.encode_merged(features, frames, speech)
        return memory.to(self.output_dtype), lengths


def build_encoder_runtime(
    encoder: HFWhisperEncoder, precision: str | None
) -> EncoderRuntime | None:
    """Return the encoder with a copy of its weights in ``encoder_precision``.

    None if the module should be used: it has this precision, or int8 is not faster here.

    Raises:
        InputError: The device does not support the precision.
    """
    weight = encoder.whisper.conv1.weight
    if precision is None:
        return None
    check_precision(precision, weight.device, OPTION)
    on_cpu = weight.device.type == "cpu"
    if precision == INT8:
        if kernels() is not None:
            return NativeEncoder(encoder.whisper, NativeLinear)
        if not has_bfloat16_instructions():
            return None
        precision = BFLOAT16
    if precision == BFLOAT16 and on_cpu:
        if has_bfloat16_instructions() and kernels() is not None:
            return NativeEncoder(encoder.whisper, NativeBfloat16Linear)
        log_bfloat16_support(OPTION)
    dtype = getattr(torch, precision)
    return None if dtype == weight.dtype else CastEncoder(encoder, dtype)
