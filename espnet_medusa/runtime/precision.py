"""In which numbers decoder and encoder compute, and whether this machine is good at them."""

import logging
from dataclasses import dataclass, replace

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_choice
from espnet_medusa.runtime.native.library import kernels

logger = logging.getLogger(__name__)

FLOAT32, BFLOAT16, FLOAT16, INT8 = "float32", "bfloat16", "float16", "int8"
PRECISIONS = (FLOAT32, BFLOAT16, FLOAT16, INT8)
ON_CPU, ON_GPU = (FLOAT32, BFLOAT16, INT8), (FLOAT32, BFLOAT16, FLOAT16)


@dataclass(frozen=True)
class Precision:
    """What the decoder computes in.

    Attributes:
        dtype: Layers, keys and values.
        int8_projection: Whether the vocabulary projection, most of a small model's weights,
            multiplies 8-bit integers.
        int8_layers: Whether layers and heads do, too, in kernels of our own; ``dtype`` is then
            what stands between products, and keys and values of the memory are bfloat16. Last
            hidden states of random decoders differ from float32's by 2 to 3 % of their norm.
    """

    dtype: torch.dtype
    int8_projection: bool = False
    int8_layers: bool = False


INT8_LAYERS = Precision(torch.float32, int8_projection=True, int8_layers=True)


def resolve_precision(
    name: str | None, device: torch.device, model_dtype: torch.dtype
) -> Precision:
    """What ``decoder_precision`` means on this device; says in the log what is slow here.

    Args:
        name: The option; None keeps the model's own.
        device: Where the decoder runs.
        model_dtype: Of its weights.

    Raises:
        InputError: Not known, or nothing this device computes with.
    """
    if name is None:
        return Precision(model_dtype)
    check_precision(name, device, "decoder_precision")
    if name == INT8:
        if kernels() is not None:
            return INT8_LAYERS
        # With torch, layers gain nothing from 8 bits: bfloat16 where there are instructions for it.
        dtype = torch.bfloat16 if has_bfloat16_instructions() else torch.float32
        return Precision(dtype, int8_projection=True)
    if device.type == "cpu" and name == BFLOAT16:
        warn_of_bfloat16("decoder_precision")
    return Precision(getattr(torch, name))


def draft_precision(name: str | None, decoder: Precision, device: torch.device) -> Precision:
    """What ``draft_precision`` means: what heads compute in.

    Without kernels of our own ``int8`` is of the vocabulary projection alone.

    Args:
        name: The option, ``int8`` or the decoder's own, as None.
        decoder: The decoder's.
        device: Where it runs.

    Raises:
        InputError: Not known, or nothing this device computes with.
    """
    if name is None:
        return decoder
    own = str(decoder.dtype).removeprefix("torch.")
    check_choice(name, [INT8, own], "draft_precision")
    check_precision(name, device, "draft_precision")
    if name == own:
        return decoder
    return replace(decoder, int8_projection=True) if kernels() is None else INT8_LAYERS


def check_precision(name: str, device: torch.device, option: str) -> None:
    """Refuse what the device does not compute with.

    Raises:
        InputError: Says what is allowed.
    """
    check_choice(name, PRECISIONS, option)
    allowed = ON_CPU if device.type == "cpu" else ON_GPU
    if name not in allowed:
        place = "a CPU" if device.type == "cpu" else "a GPU"
        raise InputError(f"{option}: {name}; allowed on {place}: {', '.join(allowed)}")


def warn_of_bfloat16(option: str) -> None:
    """Say in the log whether this CPU is good at what an option asks for."""
    if has_bfloat16_instructions():
        logger.info(f"{option}: bfloat16: this CPU has instructions for it")
    else:
        logger.warning(
            f"{option}: bfloat16, but this CPU has no instructions for it; float32 will be faster"
        )


def has_bfloat16_instructions() -> bool:
    """Whether this CPU multiplies bfloat16 matrices by itself."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
