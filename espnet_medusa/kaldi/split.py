"""Split lists over jobs."""

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def split_scp(keys: Sequence[Item], nj: int) -> list[Sequence[Item]]:
    """Split a list into runs of neighbours whose lengths differ by one at most.

    Args:
        keys: Lines, ids or anything else.
        nj: Wanted number of jobs.

    Returns:
        min(nj, number of keys) parts, none of them empty.

    Raises:
        ValueError: `nj` is below 1, or there are no keys.
    """
    if nj < 1:
        raise ValueError(f"nj must be at least 1, not {nj}")
    if not keys:
        raise ValueError("there is nothing to split: the list is empty")
    n_jobs = min(nj, len(keys))
    bounds = [job * len(keys) // n_jobs for job in range(n_jobs + 1)]
    return [keys[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]
