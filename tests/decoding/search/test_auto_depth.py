"""The depth chosen by measured costs, with given costs and acceptance."""

import json
import random
from itertools import pairwise

import pytest
from cases import cases, combinations

from espnet_medusa.decoding.search.drafting import auto_depth
from espnet_medusa.decoding.search.drafting.auto_depth import AutoDepth, size_of
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.decoding.tree.depth_plan import DepthPlan

MOST = 8


class MockRuntime:
    """Seconds of a call grow with its nodes, from ``free`` nodes on; drafts have fixed chances."""

    def __init__(self, seed, call=1.0, node=0.1, step=0.05, free=1, chance=0.8, noise=0.0):
        self.rng = random.Random(seed)
        self.call, self.node, self.step, self.free = call, node, step, free
        self.chance, self.noise, self.load = chance, noise, 1.0

    def seconds(self, running, depth):
        nodes = running * (1 + depth)
        return self.call + self.node * max(nodes - self.free, 0) + self.step * depth

    def rate(self, running, depth):
        """Expected tokens per second of an utterance."""
        tokens = sum(self.chance**step for step in range(depth + 1))
        return tokens / self.seconds(running, depth)

    def search(self, chosen, utterances, calls=12):
        """Return the plan of a search, which has been learned."""
        plan, statistics = chosen.plan(utterances), DecodingStatistics()
        for number in range(1, calls + 1):
            running = utterances if number < calls - 2 else 1
            depth = plan.trial if number <= plan.trial_calls else plan.depths[running - 1]
            seconds = self.load * self.seconds(running, depth)
            plan.calls.append((running, depth, seconds * self.rng.uniform(1, 1 + self.noise)))
            for _ in range(running):
                accepted = 0
                while accepted < depth and self.rng.random() < self.chance:
                    accepted += 1
                statistics.count_drafts(depth, accepted)
        chosen.learn(plan, [statistics])
        return plan


@combinations(
    chance=[0.1, 0.5, 0.8, 0.95], node=[0.0, 0.02, 0.1, 0.5], first=[0, 2, MOST],
    utterances=[1, 2, 6, 16],
)  # fmt: skip
def test_the_depth_is_the_best_within_5_percent(chance, node, first, utterances):
    runtime = MockRuntime(f"{chance} {node} {first}", node=node, chance=chance, noise=0.05)
    chosen = AutoDepth(first, range(MOST + 1))
    for _ in range(100):
        plan = runtime.search(chosen, utterances)
    best = max(runtime.rate(utterances, depth) for depth in range(MOST + 1))
    assert runtime.rate(utterances, plan.depths[-1]) > 0.95 * best


def test_it_changes_with_the_number_of_running_utterances():
    runtime, chosen = MockRuntime(1, free=16, node=0.3, step=0.02), AutoDepth(4, range(MOST + 1))
    for _ in range(30):
        for utterances in (1, 4, 16):
            plan = runtime.search(chosen, utterances)
    assert plan.depths[0] >= 4 and plan.depths[3] in (2, 3, 4) and plan.depths[15] == 0
    assert all(before >= after for before, after in pairwise(plan.depths))


@combinations(seed=range(5))
def test_it_does_not_oscillate(seed):
    """Depths are nearly equal, and calls take up to twice as long."""
    runtime = MockRuntime(seed, node=0.11, chance=0.6, noise=1.0)
    chosen, depths = AutoDepth(4, range(MOST + 1)), []
    for _ in range(400):
        plan = runtime.search(chosen, 2)
        depths.append(plan.depths[-1])
        used = {depth for running, depth, _ in plan.calls[plan.trial_calls :] if running == 2}
        assert used == {plan.depths[-1]}, "one depth during a search"
    assert sum(before != after for before, after in pairwise(depths)) < 12


@combinations(first=[0, 4], utterances=[1, 3, 16])
def test_trials_are_rare_and_short(first, utterances):
    runtime, chosen = MockRuntime(0, noise=0.05), AutoDepth(first, range(MOST + 1))
    plans = [runtime.search(chosen, utterances) for _ in range(300)]
    assert plans[0].trial_calls == 0, "the first search"
    assert plans[1].trial_calls == {1: auto_depth.TRIAL_CALLS, 3: 2, 16: 2}[utterances]
    changes = sum(before.depths[-1] != after.depths[-1] for before, after in pairwise(plans))
    most = auto_depth.ENOUGH * (1 + changes) + 300 // auto_depth.TRIAL_PERIOD + 1
    assert sum(plan.trial_calls > 0 for plan in plans) <= most


def test_one_trial_is_enough_if_the_other_depth_is_much_slower():
    runtime, chosen = MockRuntime(0, node=2.0, chance=0.5), AutoDepth(0, range(MOST + 1))
    plans = [runtime.search(chosen, 16) for _ in range(auto_depth.TRIAL_PERIOD - 1)]
    assert sum(plan.trial_calls > 0 for plan in plans) == 1


def test_a_load_of_the_machine_changes_nothing():
    runtime, chosen = MockRuntime(0, chance=0.9), AutoDepth(MOST, range(MOST + 1))
    for _ in range(20):
        depth = runtime.search(chosen, 1).depths[0]
    for runtime.load in [10.0] * 20 + [0.1] * 100:
        assert runtime.search(chosen, 1).depths[0] == depth


def test_it_follows_acceptance():
    runtime, chosen = MockRuntime(0, chance=0.9), AutoDepth(MOST, range(MOST + 1))
    for _ in range(20):
        runtime.search(chosen, 1)
    runtime.chance = 0.05  # another language
    for _ in range(200):
        plan = runtime.search(chosen, 1)
    assert plan.depths == [0]
    runtime.chance = 0.9  # trials notice
    for _ in range(60 * auto_depth.TRIAL_PERIOD):
        plan = runtime.search(chosen, 1)
    assert plan.depths[0] > 4


@pytest.fixture
def no_trials():
    """Replaces the fixture of all tests, which excludes trials."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "espnet_medusa" / auto_depth.FOLDER


def test_the_next_job_begins_with_what_was_measured(cache):
    runtime = MockRuntime(0, chance=0.02, node=0.3)
    chosen = AutoDepth(MOST, range(MOST + 1), "a machine")
    for _ in range(64):
        runtime.search(chosen, 1)
    assert chosen.plan(1).depths == [0]
    again = AutoDepth(MOST, range(MOST + 1), "a machine")
    assert again.plan(1).depths == [0] and again.plan(1).trial_calls == 0
    assert again.tokens() == pytest.approx(chosen.tokens())
    assert AutoDepth(MOST, range(MOST + 1), "another").plan(1).depths == [MOST]
    assert len([*cache.iterdir()]) == 1


@cases(
    ("",), ("[]",), ("{",), ('{"key": 1}',), (lambda found: found | {"costs": 3},),
    (lambda found: found | {"chosen": {"x": 1}},), (lambda found: found | {"chosen": {"0": 99}},),
    (lambda found: found | {"costs": {"0": {"99": [1.0]}}},),
    (lambda found: found | {"possible": []},),
)  # fmt: skip
def test_an_unusable_file_is_ignored(content, cache):
    runtime, chosen = MockRuntime(0), AutoDepth(4, range(MOST + 1), "a machine")
    for _ in range(4):
        runtime.search(chosen, 1)
    (path,) = cache.iterdir()
    if callable(content):
        content = json.dumps(content(json.loads(path.read_text())))
    path.write_text(content)
    assert AutoDepth(4, range(MOST + 1), "a machine").plan(1).depths == [4]


def test_only_possible_depths_are_chosen():
    runtime, chosen = MockRuntime(0, chance=0.8, node=0.15), AutoDepth(6, [0, 3, 7])
    depths = {depth for _ in range(100) for depth in runtime.search(chosen, 1).depths}
    assert chosen.first == 3 and depths <= {0, 3, 7}
    without = AutoDepth(0, [0, 3, 7])
    assert {runtime.search(without, 1).trial for _ in range(9)} <= {0, 3, 7}


def test_sizes():
    sizes = [size_of(running) for running in range(1, 18)]
    assert sizes == [0, 1, 2, 2, 3, 3, 3, 3, *[4] * 8, 5]


def test_a_plan_records_calls_after_the_first_one():
    plan = DepthPlan([3, 2], trial=0, trial_calls=1)
    assert [plan.begin_call(running) for running in (2, 2, 2, 1)] == [2, 0, 2, 3]
    plan.end_call()
    plan.end_call()
    assert [call[:2] for call in plan.calls] == [(2, 0), (2, 2), (1, 3)]
    assert all(seconds >= 0 for *_, seconds in plan.calls)
