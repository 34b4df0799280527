"""Additive attention masks: 0 where attention may go, the dtype's least number elsewhere."""

import torch


def padding_mask(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor | None:
    """Mask of padded positions as keys; None where nothing is padded, so faster kernels run.

    Args:
        hidden: (B, S, D).
        lengths: (B,).

    Returns:
        (B, 1, 1, S) or None.
    """
    outside = ~inside(hidden, lengths)
    if not bool(outside.any()):
        return None
    return _additive(outside, hidden.dtype)[:, None, None, :]


def inside(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(B, S) bool, which positions of (B, S, D) are not padding."""
    return torch.arange(hidden.size(1), device=hidden.device) < lengths[:, None]


def causal_mask(length: int, like: torch.Tensor) -> torch.Tensor:
    """(1, 1, L, L) mask of later positions, in the dtype and on the device of ``like``."""
    later = torch.ones(length, length, dtype=torch.bool, device=like.device).triu(1)
    return _additive(later, like.dtype)[None, None]


def _additive(blocked: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.zeros(blocked.shape, dtype=dtype, device=blocked.device)
    return mask.masked_fill(blocked, torch.finfo(dtype).min)
