"""What the parts of a search cost on this machine, as functions of their sizes.

All trials are pooled and medians taken, so that a moment in which the machine had other work to
do does not make the setting look slow that happened to run.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from espnet_medusa.tuning.stopwatch import Iteration
from espnet_medusa.tuning.trial import Trial

CLASSES_PER_DOUBLING = 2  # of nodes per row
FEW = 5  # samples of a class below which a median says little
ROUNDS = 30  # of reweighting
STEP_NAMES = ("iteration", "round", "step", "node")
DRAFT_NAMES = ("draft", "step", "row")
OTHER_NAMES = ("iteration", "row", "node")


@dataclass(frozen=True)
class CallCost:
    """Seconds of a decoder call: medians by nodes per row, interpolated.

    Attributes:
        knots: By class of batch rows (1, 2, 4, ...): nodes per row, seconds, samples.
    """

    knots: dict[int, list[tuple[float, float, int]]]

    def __call__(self, rows: int, row_nodes: float) -> float:
        """Seconds of a call with so many rows and nodes in each."""
        nodes, seconds, _ = zip(*self.knots[_class_of_rows(rows)], strict=True)
        found = float(np.interp(row_nodes, nodes, seconds))
        if len(nodes) > 1 and row_nodes > nodes[-1]:  # the larger half of the last class
            slope = (seconds[-1] - seconds[-2]) / (nodes[-1] - nodes[-2])
            found += max(slope, 0.0) * (row_nodes - nodes[-1])
        return found


@dataclass(frozen=True)
class LinearCost:
    """Seconds of another part: so much of each quantity.

    Attributes:
        names: Of the quantities.
        seconds: Of one of each, 0 or more.
    """

    names: tuple[str, ...]
    seconds: tuple[float, ...]

    def __call__(self, quantities: np.ndarray) -> np.ndarray:
        """(N, names) to (N,) seconds."""
        return quantities @ np.array(self.seconds)


@dataclass(frozen=True)
class PartCosts:
    """Seconds of the parts of a search with one drafter.

    Attributes:
        call: Decoder calls.
        draft: Running ahead.
        state: Taking steps.
        other: Bookkeeping.
        setup_seconds: Before the first decoder calls, of all batches.
        begin_seconds: What the drafter does once for each batch, of all.
    """

    call: CallCost
    draft: LinearCost
    state: LinearCost
    other: LinearCost
    setup_seconds: float
    begin_seconds: float

    def predict(self, trial: Trial) -> dict[str, float]:
        """Seconds of each part that a trial's iterations should take."""
        iterations = trial.iterations
        return {
            "setup": self.setup_seconds,
            "decoder calls": sum(self.call(it.rows, it.row_nodes) for it in iterations),
            "drafting": self.begin_seconds + float(self.draft(draft_quantities(iterations)).sum()),
            "walking": float(self.state(step_quantities(iterations)).sum()),
            "other": float(self.other(other_quantities(iterations)).sum()),
        }


@dataclass(frozen=True)
class SearchCost:
    """Seconds of a whole search.

    Attributes:
        parts: By drafter: a draft step of one is none of another, a decoder serves heads or not,
            and without drafts each step is new to the other scorers.
    """

    parts: dict[str, PartCosts]

    def predict(self, trial: Trial) -> dict[str, float]:
        """Seconds of each part that a trial's iterations should take."""
        return self.parts[trial.drafter].predict(trial)

    def seconds(self, trial: Trial) -> float:
        """Seconds that a trial's iterations should take."""
        return sum(self.predict(trial).values())


def fit_cost(trials: Sequence[Trial]) -> SearchCost:
    """Learn the costs from all trials."""
    by_drafter = defaultdict(list)
    for trial in trials:
        by_drafter[trial.drafter].append(trial)
    return SearchCost({drafter: _fit_parts(trials) for drafter, trials in by_drafter.items()})


def _fit_parts(trials: Sequence[Trial]) -> PartCosts:
    iterations = [iteration for trial in trials for iteration in trial.iterations]

    def fit(names: tuple[str, ...], quantities: Callable, part: str) -> LinearCost:
        seconds = np.array([getattr(iteration, part) for iteration in iterations])
        return LinearCost(names, median_regression(quantities(iterations), seconds))

    return PartCosts(
        fit_call_cost(iterations),
        fit(DRAFT_NAMES, draft_quantities, "draft_seconds"),
        fit(STEP_NAMES, step_quantities, "step_seconds"),
        fit(OTHER_NAMES, other_quantities, "other_seconds"),
        float(np.median([trial.setup_seconds for trial in trials])),
        float(np.median([trial.begin_seconds for trial in trials])),
    )


def fit_call_cost(iterations: Sequence[Iteration]) -> CallCost:
    """Medians of decoder calls of like size."""
    samples = defaultdict(lambda: defaultdict(list))
    for it in iterations:
        size = round(CLASSES_PER_DOUBLING * np.log2(it.row_nodes))
        samples[_class_of_rows(it.rows)][size].append((it.row_nodes, it.call_seconds))
    return CallCost({rows: _knots(by_size) for rows, by_size in sorted(samples.items())})


def _knots(by_size: dict[int, list[tuple[float, float]]]) -> list[tuple[float, float, int]]:
    """Medians of classes; those with few samples join the next."""
    groups, pooled = [], []
    for size in sorted(by_size):
        pooled += by_size[size]
        if len(pooled) >= FEW:
            groups.append(pooled)
            pooled = []
    if pooled:
        groups = [*groups[:-1], (groups[-1] if groups else []) + pooled]
    return [
        (*(float(value) for value in np.median(np.array(group), axis=0)), len(group))
        for group in groups
    ]


def step_quantities(iterations: Sequence[Iteration]) -> np.ndarray:
    """(N, 4): what walking costs depend on."""
    return np.array([(1, it.rounds, it.steps, it.nodes) for it in iterations], dtype=float)


def draft_quantities(iterations: Sequence[Iteration]) -> np.ndarray:
    """(N, 3): what drafting costs depend on."""
    quantities = [(it.drafts, it.draft_steps, it.draft_rows) for it in iterations]
    return np.array(quantities, dtype=float)


def other_quantities(iterations: Sequence[Iteration]) -> np.ndarray:
    """(N, 3): what the rest depends on."""
    return np.array([(1, it.rows, it.nodes) for it in iterations], dtype=float)


def median_regression(quantities: np.ndarray, seconds: np.ndarray) -> tuple[float, ...]:
    """Coefficients, 0 or more, with the least sum of absolute errors.

    Args:
        quantities: (N, Q).
        seconds: (N,).

    Returns:
        Q coefficients; iteratively reweighted least squares.
    """
    used = []
    for column in range(quantities.shape[1]):
        # In a batch of one, utterances and iterations are the same.
        if not any((quantities[:, column] == quantities[:, other]).all() for other in used):
            used.append(column)
    floor = max(1e-3 * float(np.median(np.abs(seconds))), 1e-12)
    while True:
        columns = quantities[:, used]
        weights = np.ones(len(seconds))
        for _ in range(ROUNDS):
            root = np.sqrt(weights)
            found = np.linalg.lstsq(columns * root[:, None], seconds * root, rcond=None)[0]
            weights = 1 / np.maximum(np.abs(seconds - columns @ found), floor)
        if len(used) == 1 or found.min() >= 0:
            break
        used.pop(int(found.argmin()))
    coefficients = np.zeros(quantities.shape[1])
    coefficients[used] = np.maximum(found, 0)
    return tuple(coefficients.tolist())


def _class_of_rows(rows: int) -> int:
    """1, 2, 4, 8, ...: the next power of two."""
    return 1 << (rows - 1).bit_length()
