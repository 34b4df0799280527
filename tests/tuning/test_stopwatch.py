"""The clock counts processor time of one thread; the stopwatch counts seconds by part."""

import time

import pytest
import torch
from charged import Offer, Prices, make_task

from espnet_medusa.search.options import CTC, HEADS
from espnet_medusa.tuning.available import DraftSetting
from espnet_medusa.tuning.stopwatch import CALLS, DRAFTING, Clock
from espnet_medusa.tuning.trial import Trial, run_trials


def test_one_thread_does_not_count_waiting():
    clock = Clock(torch.device("cpu"))
    assert torch.get_num_threads() == 1 and clock.thread_time
    started = clock.now()
    time.sleep(0.1)
    assert clock.now() - started < 0.05
    while clock.now() - started < 0.05:
        sum(range(1000))


def test_several_threads_count_wall_time(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    clock = Clock(torch.device("cpu"))
    started = clock.now()
    time.sleep(0.02)
    assert not clock.thread_time and clock.now() - started >= 0.02


@pytest.mark.parametrize("beam_size", [None, 3])
@pytest.mark.parametrize("kind", [HEADS, CTC])
def test_timing_changes_nothing_and_finds_the_seconds_of_each_part(kind, beam_size):
    prices = Prices(offers={"draft": Offer(0.01, begin=0.3, kind=kind)})
    task, setting = make_task(prices, beam_size), DraftSetting("draft", 4, 3)
    trial = Trial(task.redraft(setting))
    run_trials(task, {setting: trial}, task.batches, "test")
    search, spent = task.redraft(setting), prices.spent
    states = [batch.decode(search, task.limits, "draft")[0] for batch in task.batches]
    statistics = sum((state.statistics for state in states[1:]), states[0].statistics)
    assert trial.seconds == pytest.approx(prices.spent - spent)
    for name in ("decoder_calls", "nodes", "tokens", "drafted", "accepted"):
        assert getattr(trial.statistics, name) == getattr(statistics, name)
    assert trial.batch_calls == statistics.decoder_calls
    evaluated = prices.call * statistics.decoder_calls + prices.node * statistics.nodes
    assert trial.part_seconds[CALLS] == pytest.approx(evaluated)
    assert sum(trial.part_seconds.values()) == pytest.approx(trial.seconds)
    assert trial.part_seconds[DRAFTING] > 2 * 0.3
    assert trial.outputs["a"] == [(tuple(h.tokens), h.score) for h in states[0].n_best[:1]]
    assert task.search.planner.shape.depth == 0, "the given search is not changed"
