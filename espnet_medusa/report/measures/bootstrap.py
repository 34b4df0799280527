"""Ratios over utterances with their bootstrap intervals."""

from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
INTERVAL = (2.5, 97.5)  # percentiles
FEWEST = 10  # utterances; of fewer an interval says nothing


@dataclass(frozen=True)
class Estimate:
    """A value, and its 95% bootstrap interval where there are utterances enough."""

    value: float
    low: float | None = None
    high: float | None = None


def ratio_of_sums(numerators: np.ndarray, denominators: np.ndarray) -> Estimate | None:
    """Sum of the numerators over that of the denominators.

    Args:
        numerators, denominators: One value an utterance, shape (n,).

    Returns:
        None where the denominators sum to zero. The interval comes from the percentiles over
        resampled utterances (Bisani and Ney, ICASSP 2004), with a fixed seed.
    """
    total = float(np.sum(denominators))
    if not total:
        return None
    value = float(np.sum(numerators)) / total
    count = len(numerators)
    if count < FEWEST:
        return Estimate(value)
    random = np.random.default_rng(0)
    times = random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    above, below = times @ np.asarray(numerators, float), times @ np.asarray(denominators, float)
    low, high = np.percentile(above[below > 0] / below[below > 0], INTERVAL)
    return Estimate(value, float(low), float(high))
