"""Whisper's trained encoder as decoding runs it: in fewer bits, beside the module."""

import copy
from typing import Protocol

import torch

from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.runtime.native.library import kernels
from espnet_medusa.runtime.native.linear import NativeLinear, NativeRoundedLinear
from espnet_medusa.runtime.native_encoder import NativeEncoder
from espnet_medusa.runtime.precision import (
    BFLOAT16,
    INT8,
    check_precision,
    has_bfloat16_instructions,
    warn_of_bfloat16,
)

OPTION = "encoder_precision"


class EncoderRuntime(Protocol):
    """Features (B, T, bins) and frames (B,) to memory (B, S, D) and its frames (B,)."""

    def __call__(
        self, features: torch.Tensor, frames: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


class CastEncoder:
    """The module in other numbers, as torch computes it; memory comes in the module's own.

    Args:
        encoder: Copied.
        dtype: To compute in.
    """

    def __init__(self, encoder: HFWhisperEncoder, dtype: torch.dtype):
        self.own = encoder.whisper.conv1.weight.dtype
        self.encoder = copy.deepcopy(encoder).to(dtype).eval()

    def __call__(
        self, features: torch.Tensor, frames: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        memory, lengths, _ = self.encoder(features, frames)
        return memory.to(self.own), lengths


def build_encoder_runtime(
    encoder: HFWhisperEncoder, precision: str | None
) -> EncoderRuntime | None:
    """The encoder in these numbers, with the module's weights at this moment.

    Args:
        encoder: Trained.
        precision: As the decode option ``encoder_precision``; None: the weights' own.

    Returns:
        None where the module itself computes so: in its own numbers, or in 8 bits on a machine
        that is no faster in fewer bits.

    Raises:
        InputError: Nothing this device computes with.
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
            return NativeEncoder(encoder.whisper, NativeRoundedLinear)
        warn_of_bfloat16(OPTION)
    dtype = getattr(torch, precision)
    return None if dtype == weight.dtype else CastEncoder(encoder, dtype)
