"""Numbers that the host has found, for the device where a model computes."""

from typing import Any

import torch


def upload(numbers: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``torch.tensor(numbers)`` on a device; a GPU at work is not waited for.

    Args:
        numbers: Nested sequences, a NumPy array or a tensor of the host's.
        device: Where they shall be.
        dtype: Of the tensor; None: as torch infers it.
    """
    return staged(numbers, device, dtype).to(device, non_blocking=True)


def staged(numbers: Any, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The tensor while it is still the host's, in memory that a GPU reads by itself."""
    tensor = torch.as_tensor(numbers, dtype=dtype)
    return tensor.pin_memory() if device.type == "cuda" else tensor
