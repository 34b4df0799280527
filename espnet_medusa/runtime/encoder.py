"""Runtime of Whisper's encoder in other precisions than the module's."""

import copy
from collections.abc import Callable

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

# Parameters and results are those of ``HFWhisperEncoder.encode``.
EncoderRuntime = Callable[..., tuple[torch.Tensor, torch.Tensor]]
OPTION = "encoder_precision"


class CastEncoder:
    """A copy of the encoder in ``dtype``; its output has the original dtype."""

    def __init__(self, encoder: HFWhisperEncoder, dtype: torch.dtype):
        self.output_dtype = encoder.whisper.conv1.weight.dtype
        self.encoder = copy.deepcopy(encoder).to(dtype).eval()

    def __call__(
        self, features: torch.Tensor, frames: torch.Tensor, kept: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        memory, lengths = self.encoder.encode(features, frames, kept)
        return memory.to(self.output_dtype), lengths


def build_encoder_runtime(
    encoder: HFWhisperEncoder, precision: str | None
) -> EncoderRuntime | None:
    """Return the encoder with a copy of its weights in ``encoder_precision``.

    Return None if the module has this precision, or int8 is not faster here. Raise InputError if
    the device does not support the precision.
    """
    weight = encoder.whisper.conv1.weight
    if precision is None:
        return None
    check_precision(precision, weight.device, OPTION)
    if precision == INT8:
        if kernels() is not None:
            return NativeEncoder(encoder.whisper, NativeLinear)
        if not has_bfloat16_instructions():
            return None
        precision = BFLOAT16
    if precision == BFLOAT16 and weight.device.type == "cpu":
        if has_bfloat16_instructions() and kernels() is not None:
            return NativeEncoder(encoder.whisper, NativeBfloat16Linear)
        log_bfloat16_support(OPTION)
    dtype = getattr(torch, precision)
    return None if dtype == weight.dtype else CastEncoder(encoder, dtype)
