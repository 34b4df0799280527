"""Where to write the labels of points, for labels and points not to cover each other."""

import numpy as np

DIRECTIONS = 16


def label_places(points: np.ndarray, obstacles: np.ndarray, distance: float) -> np.ndarray:
    """The middle of each point's label, as clear of everything else as of its point, if it can.

    Labels are placed one by one, each of them an obstacle to those that follow.

    Args:
        points: Their places, shape (n, 2), such as in pixels.
        obstacles: Places to keep clear of, shape (m, 2), the points among them.
        distance: From a point to its label.

    Returns:
        Places, shape (n, 2).
    """
    # From above, clockwise: of equal places the first is taken.
    angles = np.pi / 2 - np.linspace(0, 2 * np.pi, DIRECTIONS, endpoint=False)
    steps = distance * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    taken = np.asarray(obstacles, float)
    for point in points:
        candidates = point + steps
        gaps = np.linalg.norm(candidates[:, None] - taken, axis=2).min(axis=1)
        taken = np.vstack([taken, candidates[np.argmax(gaps.round(6))]])
    return taken[len(obstacles) :]
