"""The implementation of each part of a model, by processor and requested precision.

``TABLE`` decides; all other modules read a ``Precision``. "Kernels" are this package's own, in
``native``. On a CPU without them, int8 means bfloat16 if the CPU has instructions for it, else
float32. A GPU refuses int8.
"""

import logging
from dataclasses import dataclass
from enum import Enum

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_choice
from espnet_medusa.decoding.runtime.native.library import kernels

logger = logging.getLogger(__name__)

FLOAT32, BFLOAT16, FLOAT16, INT8 = "float32", "bfloat16", "float16", "int8"
PRECISIONS = (FLOAT32, BFLOAT16, FLOAT16, INT8)


@dataclass(frozen=True)
class Precision:
    """How a part computes."""

    dtype: torch.dtype  # of activations; without kernels, also of weights, keys and values
    # Precision of weights in our kernels; None: torch computes. Cross-attention keys and values
    # then have 16 bits. In int8, last hidden states of random decoders differ from float32's by 2
    # to 3 % of their norm.
    kernels: str | None = None

    def __str__(self) -> str:
        return f"{self.kernels} kernels" if self.kernels else str(self.dtype).split(".")[-1]


IN_FLOAT32, IN_BFLOAT16, IN_FLOAT16 = map(Precision, (torch.float32, torch.bfloat16, torch.float16))
INT8_KERNELS = Precision(torch.float32, INT8)
BFLOAT16_KERNELS = Precision(torch.float32, BFLOAT16)  # of encoders only


class Processor(Enum):
    GPU = "GPU"
    CPU = "CPU"
    CPU_BFLOAT16 = "CPU with bfloat16 instructions"
    CPU_KERNELS = "CPU with kernels"
    CPU_KERNELS_BFLOAT16 = "CPU with kernels and bfloat16 instructions"

    @staticmethod
    def of(device: torch.device) -> "Processor":
        if device.type != "cpu":
            return Processor.GPU
        if kernels() is None:
            return Processor.CPU_BFLOAT16 if has_bfloat16_instructions() else Processor.CPU
        has_bfloat16 = has_bfloat16_instructions()
        return Processor.CPU_KERNELS_BFLOAT16 if has_bfloat16 else Processor.CPU_KERNELS


ON_CPU = {FLOAT32: IN_FLOAT32, BFLOAT16: IN_BFLOAT16}
TABLE: dict[Processor, dict[str, Precision]] = {
    Processor.GPU: {FLOAT32: IN_FLOAT32, BFLOAT16: IN_BFLOAT16, FLOAT16: IN_FLOAT16},
    Processor.CPU: {**ON_CPU, INT8: IN_FLOAT32},
    Processor.CPU_BFLOAT16: {**ON_CPU, INT8: IN_BFLOAT16},
    Processor.CPU_KERNELS: {**ON_CPU, INT8: INT8_KERNELS},
    Processor.CPU_KERNELS_BFLOAT16: {**ON_CPU, INT8: INT8_KERNELS},
}


def check_precision(name: str, device: torch.device, option: str) -> None:
    """Raise InputError if ``name`` is unknown or the device does not support it."""
    check_choice(name, PRECISIONS, option)
    allowed = TABLE[Processor.of(device)]
    if name not in allowed:
        place = "CPU" if device.type == "cpu" else "GPU"
        raise InputError(f"{option}: {name}; allowed on a {place}: {', '.join(allowed)}")


def decoder_precision(
    name: str | None, device: torch.device, model_dtype: torch.dtype
) -> Precision:
    """Return the precision for the option ``decoder_precision``; None: ``model_dtype``.

    Raise InputError if the device does not support it.
    """
    if name is None:
        return Precision(model_dtype)
    return _look_up(name, device, "decoder_precision")


def draft_precision(name: str | None, decoder: Precision, device: torch.device) -> Precision:
    """Return the heads' precision for the option ``draft_precision``; None: the decoder's.

    Raise InputError if the name is neither int8 nor the decoder's, or the device does not support
    it. Without kernels, int8 is the decoder's precision.
    """
    if name is None:
        return decoder
    own = decoder.kernels or str(decoder)
    check_choice(name, sorted({INT8, own}), "draft_precision")
    check_precision(name, device, "draft_precision")
    return INT8_KERNELS if name == INT8 and has_kernels(device) else decoder


def encoder_precision(name: str, device: torch.device) -> Precision:
    """Return the precision for the option ``encoder_precision``; errors as for the decoder's."""
    processor = Processor.of(device)
    if name == BFLOAT16 and processor is Processor.CPU_KERNELS_BFLOAT16:
        return BFLOAT16_KERNELS
    return _look_up(name, device, "encoder_precision")


def _look_up(name: str, device: torch.device, option: str) -> Precision:
    check_precision(name, device, option)
    found = TABLE[Processor.of(device)][name]
    if device.type == "cpu" and name == BFLOAT16 and not has_bfloat16_instructions():
        logger.warning(
            f"{option}: bfloat16, but this CPU has no instructions for it; float32 will be faster"
        )
    return found


def has_kernels(device: torch.device) -> bool:
    """Return whether our kernels run on the device; the first call compiles or loads them."""
    return device.type == "cpu" and kernels() is not None


def has_bfloat16_instructions() -> bool:
    """Return whether this CPU has instructions for bfloat16 matrix products."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def has_blocked_layout(dtype: torch.dtype) -> bool:
    """Return whether oneDNN has a blocked layout of this dtype on this CPU."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16_instructions())
