"""Dynamic time warping: the cheapest way through a matrix, each step to the right, down or both."""

from __future__ import annotations

import numpy as np

BOTH, DOWN, RIGHT = 0, 1, 2


def cheapest_path(costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """From the first corner of (N, M) costs to the last: rows and columns (L,) of the places.

    Sakoe and Chiba, "Dynamic programming algorithm optimization for spoken word recognition",
    1978. Among equal ways to a place the one from the left comes first.
    """
    return _follow(_steps(costs))


def _steps(costs: np.ndarray) -> np.ndarray:
    """(N + 1, M + 1) the last step to each place; row 0 and column 0 lie before the matrix."""
    rows, columns = costs.shape
    # By anti-diagonals, whose places do not depend on each other; sums in float32.
    sums = np.full((rows + 1, columns + 1), np.inf, dtype=np.float32)
    steps = np.full((rows + 1, columns + 1), RIGHT, dtype=np.int8)
    sums[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, down, right = sums[i - 1, j - 1], sums[i - 1, j], sums[i, j - 1]
        step = np.where((down < both) & (down < right), DOWN, RIGHT)
        step = np.where((both < down) & (both < right), BOTH, step)
        best = np.choose(step, [both, down, right])
        sums[i, j] = costs[i - 1, j - 1] + best.astype(np.float64)
        steps[i, j] = step
    steps[:, 0] = DOWN
    steps[0] = RIGHT
    return steps


def _follow(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Back from the last corner."""
    i, j = steps.shape[0] - 1, steps.shape[1] - 1
    path = []
    while i > 0 and j > 0:
        path.append((i - 1, j - 1))
        step = steps[i, j]
        i, j = i - (step != RIGHT), j - (step != DOWN)
    rows, columns = np.array(path[::-1]).T
    return rows, columns
