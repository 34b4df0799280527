"""The clock counts what this process does, and nothing that it waits for."""

import time

import torch

from espnet_medusa.tuning.stopwatch import Clock, PhaseLog


def test_one_thread_does_not_count_waiting():
    clock = Clock(torch.device("cpu"))
    assert torch.get_num_threads() == 1 and clock.own_time
    started = clock.now()
    time.sleep(0.1)
    assert clock.now() - started < 0.05
    while clock.now() - started < 0.05:
        sum(range(1000))


def test_several_threads_count_as_on_the_wall(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    clock = Clock(torch.device("cpu"))
    started = clock.now()
    time.sleep(0.02)
    assert not clock.own_time and clock.now() - started >= 0.02


def test_what_no_part_claims_is_setup_or_other():
    class Ticks:
        seconds = 0.0

        def now(self):
            return self.seconds

    ticks = Ticks()

    def work(seconds):
        ticks.seconds += seconds
        return seconds

    log = PhaseLog(ticks)
    log.begin()
    work(3)
    log.claim("begin", lambda: work(0.25))
    log.claim("draft", lambda: work(4))  # before the first call: of its iteration
    work(1)
    log.open(2, 4.0)
    assert log.claim("call", lambda: work(5)) == 5
    work(1)
    log.claim("draft", lambda: work(2))
    log.claim("call", lambda: work(0.5))
    log.open(1, 4.0)
    log.claim("state", lambda: work(7))
    log.close()
    first, second = log.iterations
    assert log.setup_seconds == 4
    assert (first.begin_seconds, first.rows, second.rows) == (0.25, 2, 1)
    assert (first.call_seconds, first.draft_seconds, first.other_seconds) == (5.5, 6, 1)
    assert (second.step_seconds, second.other_seconds) == (7, 0)
