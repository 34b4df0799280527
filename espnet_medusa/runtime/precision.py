"""In which numbers the decoder computes, and whether this machine is good at them."""

import logging

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_choice

logger = logging.getLogger(__name__)

FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"
PRECISIONS = {FLOAT32: torch.float32, BFLOAT16: torch.bfloat16, FLOAT16: torch.float16}


def resolve_precision(
    name: str | None, device: torch.device, model_dtype: torch.dtype
) -> torch.dtype:
    """What ``decoder_precision`` means on this device; says in the log what is slow here.

    Args:
        name: The option; None keeps the model's own.
        device: Where the decoder runs.
        model_dtype: Of its weights.

    Raises:
        InputError: Not known, or nothing this device computes with.
    """
    if name is None:
        return model_dtype
    check_choice(name, list(PRECISIONS), "decoder_precision")
    if device.type == "cpu" and name == FLOAT16:
        raise InputError("decoder_precision: float16; allowed on a CPU: float32, bfloat16")
    if device.type == "cpu" and name == BFLOAT16:
        if has_bfloat16_instructions():
            logger.info("decoder in bfloat16: this CPU has instructions for it")
        else:
            logger.warning(
                "decoder_precision: bfloat16, but this CPU has no instructions for it; float32 "
                "will be faster"
            )
    return PRECISIONS[name]


def has_bfloat16_instructions() -> bool:
    """Whether this CPU multiplies bfloat16 matrices by itself."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
