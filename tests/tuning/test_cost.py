"""Costs are found again from timed iterations, although some were disturbed."""

import numpy as np
import pytest

from espnet_medusa.tuning.cost import fit_call_cost, fit_cost, median_regression
from espnet_medusa.tuning.stopwatch import Iteration
from espnet_medusa.tuning.trial import Trial


def call_seconds(rows: int, row_nodes: float) -> float:
    return 1e-3 + 1e-4 * rows * row_nodes


def make_trial(rng, drafts: bool, count: int = 400) -> Trial:
    iterations = []
    for _ in range(count):
        rows = int(rng.integers(1, 9))
        nodes = int(rng.choice([1, 2, 4, 8, 16])) if drafts else 1
        steps = int(rng.integers(1, nodes + 1))
        draft_steps = 4 if drafts else 0
        draft_rows = draft_steps * rows * nodes
        speed = 0.5 if not drafts else 1.0
        iterations.append(
            Iteration(
                rows, nodes, rows * nodes, steps, steps * rows, int(drafts), draft_steps,
                draft_rows,
                call_seconds=speed * call_seconds(1 << (rows - 1).bit_length(), nodes),
                step_seconds=1e-4 + 2e-5 * steps * rows,
                draft_seconds=1e-6 * drafts + 3e-4 * draft_steps + 1e-5 * draft_rows,
                other_seconds=5e-5 + 1e-5 * rows,
            )
        )  # fmt: skip
    drafter, begin = ("heads", 0.05) if drafts else ("none", 0.0)
    return Trial(drafter, iterations=iterations, setup_seconds=0.25, begin_seconds=begin)


def whole(trial: Trial) -> float:
    names = ("call_seconds", "step_seconds", "draft_seconds", "other_seconds")
    return (
        0.25
        + trial.begin_seconds
        + sum(getattr(it, name) for it in trial.iterations for name in names)
    )


def test_predictions_are_the_undisturbed_seconds():
    rng = np.random.default_rng(1)
    trials = [make_trial(rng, drafts=False), make_trial(rng, drafts=True)]
    expected = [whole(trial) for trial in trials]
    for trial in trials:  # the machine had other work to do in every fourth iteration
        for iteration in trial.iterations[::4]:
            iteration.call_seconds *= 3
            iteration.step_seconds += 0.01
            iteration.draft_seconds += 0.01
    cost = fit_cost(trials)
    for trial, seconds in zip(trials, expected, strict=True):
        assert cost.seconds(trial) == pytest.approx(seconds, rel=0.02)
        assert cost.seconds(trial) == pytest.approx(sum(cost.predict(trial).values()))
        assert whole(trial) > 1.3 * seconds, "the disturbance was worth mentioning"
    state = dict(
        zip(cost.parts["heads"].state.names, cost.parts["heads"].state.seconds, strict=True)
    )
    assert state["step"] == pytest.approx(2e-5, rel=0.02)
    assert state["iteration"] == pytest.approx(1e-4, rel=0.02)


def test_calls_are_interpolated_between_medians_and_by_rows():
    iterations = [
        Iteration(rows, nodes, call_seconds=rows * (1.0 + nodes))
        for rows in (1, 8)
        for nodes in (1, 2, 4, 8, 16)
        for _ in range(5)
    ]
    cost = fit_call_cost(iterations)
    assert cost(1, 12) == pytest.approx(13.0)
    assert cost(8, 3) == pytest.approx(32.0)
    assert cost(1, 20) == pytest.approx(21.0)
    assert cost(5, 3) == cost(8, 3), "rows go to the next power of two"
    assert [knot[2] for knot in cost.knots[1]] == [5] * 5


def test_rare_sizes_join_others():
    few = [Iteration(1, 1, call_seconds=1.0)] * 2
    many = [Iteration(1, 8, call_seconds=9.0)] * 7
    last = [Iteration(1, 64, call_seconds=50.0)]
    assert [samples for *_, samples in fit_call_cost(few + many + last).knots[1]] == [10]
    assert fit_call_cost(few).knots == {1: [(1.0, 1.0, 2)]}


def test_regression_neither_goes_below_zero_nor_splits_equal_columns():
    rng = np.random.default_rng(0)
    steps = rng.integers(1, 9, 200).astype(float)
    quantities = np.stack([np.ones(200), steps, steps, rng.random(200)], axis=1)
    found = median_regression(quantities, 2.0 + 3.0 * steps - 1e-3 * quantities[:, 3])
    assert found == pytest.approx((2.0, 3.0, 0.0, 0.0), abs=5e-3)
    assert min(found) >= 0
