"""Additive attention masks: 0 for visible positions, the dtype's minimum for others."""

import torch


def padding_mask(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor | None:
    """Return the mask (B, 1, 1, S) of padding in (B, S, D), or None without padding.

    Attention kernels without a mask are faster. A row that represents several frames
    (``lengths`` (B, S); ``networks.merged_padding``) gets the log of their number.
    """
    if lengths.dim() == 2:
        lowest = torch.finfo(hidden.dtype).min
        mask = lengths.to(hidden.dtype).log().clamp(min=lowest)
        more = hidden.size(1) - mask.size(1)
        return torch.nn.functional.pad(mask, (0, more), value=lowest)[:, None, None, :]
    outside = ~inside(hidden, lengths)
    return _additive(outside, hidden.dtype)[:, None, None, :] if bool(outside.any()) else None


def inside(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return (B, S) bool: which positions of (B, S, D) are not padding."""
    return torch.arange(hidden.size(1), device=hidden.device) < lengths[:, None]


def causal_mask(
    length: int, like: torch.Tensor, branches: int = 1, prefix: int = 0
) -> torch.Tensor:
    """Return a mask (1, 1, P + N L, P + N L) that hides later positions and other branches.

    Args:
        like: A tensor with the dtype and device of the mask.
        branches: N sequences after one another that do not attend to each other.
        prefix: P positions before them that all branches attend to.
    """
    places = torch.arange(prefix + branches * length, device=like.device)
    branch = torch.where(places < prefix, -1, (places - prefix) // length)
    blocked = (places > places[:, None]) | ((branch >= 0) & (branch != branch[:, None]))
    return _additive(blocked, like.dtype)[None, None]


def _additive(blocked: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    mask = torch.zeros(blocked.shape, dtype=dtype, device=blocked.device)
    return mask.masked_fill(blocked, torch.finfo(dtype).min)
