"""Precisions in which decoder and encoder compute, and which of them a device supports."""

import logging
from dataclasses import dataclass, replace

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_choice
from espnet_medusa.decoding.runtime.native.library import kernels

logger = logging.getLogger(__name__)

FLOAT32, BFLOAT16, FLOAT16, INT8 = "float32", "bfloat16", "float16", "int8"
PRECISIONS = (FLOAT32, BFLOAT16, FLOAT16, INT8)
ON_CPU, ON_GPU = (FLOAT32, BFLOAT16, INT8), (FLOAT32, BFLOAT16, FLOAT16)


@dataclass(frozen=True)
class Precision:
    dtype: torch.dtype  # of layers, keys and values
    # Whether the vocabulary projection uses 8-bit integers. It has most weights of small models.
    int8_projection: bool = False
    # Whether layers and heads use the native 8-bit kernels. ``dtype`` is then that of activations,
    # and cross-attention keys and values have 16 bits. Last hidden states of random decoders differ
    # from float32's by 2 to 3 % of their norm.
    int8_layers: bool = False


INT8_LAYERS = Precision(torch.float32, int8_projection=True, int8_layers=True)


def resolve_precision(
    name: str | None, device: torch.device, model_dtype: torch.dtype
) -> Precision:
    """Return the precision for ``decoder_precision``, or ``model_dtype``; may raise InputError."""
    if name is None:
        return Precision(model_dtype)
    check_precision(name, device, "decoder_precision")
    if name == INT8:
        if kernels() is not None:
            return INT8_LAYERS
        # torch's 8-bit products do not make layers faster than bfloat16 instructions do.
        dtype = torch.bfloat16 if has_bfloat16_instructions() else torch.float32
        return Precision(dtype, int8_projection=True)
    if device.type == "cpu" and name == BFLOAT16:
        log_bfloat16_support("decoder_precision")
    return Precision(getattr(torch, name))


def draft_precision(name: str | None, decoder: Precision, device: torch.device) -> Precision:
    """Return the heads' precision for the option ``draft_precision``; None: the decoder's.

    Without native kernels, ``int8`` applies to the vocabulary projection only. Raise InputError if
    the name is neither int8 nor the decoder's, or the device does not support it.
    """
    if name is None:
        return decoder
    own = INT8 if decoder.int8_projection else str(decoder.dtype).removeprefix("torch.")
    check_choice(name, sorted({INT8, own}), "draft_precision")
    check_precision(name, device, "draft_precision")
    if name == own:
        return decoder
    return replace(decoder, int8_projection=True) if kernels() is None else INT8_LAYERS


def check_precision(name: str, device: torch.device, option: str) -> None:
    """Raise an InputError if ``name`` is unknown or the device does not support it."""
    check_choice(name, PRECISIONS, option)
    place, allowed = ("CPU", ON_CPU) if device.type == "cpu" else ("GPU", ON_GPU)
    if name not in allowed:
        raise InputError(f"{option}: {name}; allowed on a {place}: {', '.join(allowed)}")


def log_bfloat16_support(option: str) -> None:
    if has_bfloat16_instructions():
        logger.info(f"{option}: bfloat16: this CPU has instructions for it")
    else:
        logger.warning(
            f"{option}: bfloat16, but this CPU has no instructions for it; float32 will be faster"
        )


def has_bfloat16_instructions() -> bool:
    """Return whether this CPU has instructions for bfloat16 matrix products."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
