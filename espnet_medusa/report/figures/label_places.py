"""Where to write the labels of points, for labels and points not to cover each other."""

import numpy as np

DIRECTIONS = 16
RINGS = (1.0, 2.5, 4.0, 5.5, 7.0, 8.5, 10.0)  # distances to try, in those asked for
CLEAR = 0.8  # share of the distance that should stay free
# What else a place costs, in distances.
NARROW, MISTAKEN, CROSSED, COVERS, COVERS_LABEL = 5.0, 10.0, 20.0, 40.0, 100.0
AS_NEAR = 1.5  # another point within so many times the distance of its own: which is meant?
STEPS = np.linspace(0.0, 1.0, 12)[:, None]  # places on the line from a point to its label


def label_places(
    points: np.ndarray,
    sizes: np.ndarray,
    obstacles: np.ndarray,
    distance: float,
    bounds: tuple[float, float, float, float],
) -> np.ndarray:
    """The middle of each point's label: beside it where that is free, else near by.

    Labels are placed one by one, each of them an obstacle to those that follow, and so is the line
    that leads to it.

    Args:
        points: Their places, shape (n, 2), such as in pixels.
        sizes: Width and height of the labels, shape (n, 2).
        obstacles: Places to keep clear of, shape (m, 2), the points among them.
        distance: From a point to the border of its label.
        bounds: Left, lower, right and upper border of the room for labels.

    Returns:
        Places, shape (n, 2).
    """
    # From above, clockwise: of equal places the first is taken.
    angles = np.pi / 2 - np.linspace(0, 2 * np.pi, DIRECTIONS, endpoint=False)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    # Towards the border of a square: nothing of the label is nearer than its distance.
    directions /= np.abs(directions).max(axis=1, keepdims=True)
    low, high = np.reshape(bounds, (2, 2))
    rings = np.repeat(RINGS, DIRECTIONS)
    steps = np.tile(directions, (len(RINGS), 1))
    taken, places, halves = np.asarray(obstacles, float), np.zeros((0, 2)), np.zeros((0, 2))
    order = np.lexsort(np.transpose(points)[::-1])  # from left to right
    for index, half in zip(order, np.asarray(sizes)[order] / 2, strict=True):
        point, others = points[index], np.delete(points, index, axis=0)
        tried = point + steps * (half + rings[:, None] * distance)
        leaders = leader(point, tried, half)
        gaps = _gaps(tried[:, None], taken, half).min(axis=1)
        to_labels = _gaps(tried[:, None], places, half + halves).min(axis=1, initial=np.inf)
        to_leaders = _gaps(leaders[:, :, None], places, halves).min(axis=(1, 2), initial=np.inf)
        to_others = _gaps(tried[:, None], others, half).min(axis=1, initial=np.inf)
        through = _gaps(leaders[:, :, None], others, 0.0).min(axis=(1, 2), initial=np.inf)
        # A line leads to those further off.
        mistaken = (rings == RINGS[0]) & (to_others < AS_NEAR * distance)
        outside = ((tried - half < low) | (tried + half > high)).any(axis=1)
        narrow = 1 - np.minimum(gaps, to_labels) / (CLEAR * distance)
        costs = rings + NARROW * narrow.clip(min=0) + CROSSED * (to_leaders == 0)
        costs += MISTAKEN * mistaken + CROSSED * (through < distance / 2)
        costs += COVERS * (gaps == 0) + COVERS_LABEL * ((to_labels == 0) | outside)
        best = np.argmin(costs.round(6))
        places, halves = np.vstack([places, tried[best]]), np.vstack([halves, half])
        taken = np.vstack([taken, leaders[best]])
    return places[np.argsort(order)]


def leader(point: np.ndarray, places: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Places on the straight line from a point to the border of its label, shape (p, steps, 2).

    Args:
        point: (2,).
        places: Middles of the label, shape (p, 2).
        half: Half of its width and height, shape (2,).
    """
    ends = np.clip(point, places - half, places + half)
    return point + STEPS * (ends - point)[:, None]


def _gaps(first: np.ndarray, second: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Distances of boxes whose middles these are; ``reach``: half of both sizes."""
    return np.linalg.norm(np.maximum(np.abs(first - second) - reach, 0.0), axis=-1)
