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


def causal_mask(
    length: int, like: torch.Tensor, branches: int = 1, prefix: int = 0
) -> torch.Tensor:
    """Mask of later positions, and of other branches.

    Args:
        length: Of a branch, L.
        like: Gives dtype and device.
        branches: N sequences, one behind the other, that do not see each other.
        prefix: P positions before them that all see.

    Returns:
        (1, 1, P + N L, P + N L).
    """
    places = torch.arange(prefix + branches * length, device=like.device)
    branch = torch.where(places < prefix, -1, (places - prefix) // length)
    blocked = (places > places[:, None]) | ((branch >= 0) & (branch != branch[:, None]))
    return _additive(blocked, like.dtype)[None, None]


def _additive(blocked: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.zeros(blocked.shape, dtype=dtype, device=blocked.device)
    return mask.masked_fill(blocked, torch.finfo(dtype).min)
