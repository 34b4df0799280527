"""Reading train.log, and the progress shown from logs."""

import io
import math
from pathlib import Path

import pytest
from cases import cases
from refusals import assert_refused

from espnet_medusa.recipes import log_progress as progress_module
from espnet_medusa.recipes.log_progress import JobsProgress, LiveLine, TrainingProgress
from espnet_medusa.recipes.train_log import parse_results, read_epochs

HEAD = "[host] 2026-11-21 01:00:00,000 (trainer:394) INFO: "
RESULTS = (
    "3epoch results: [train] iter_time=0.012, loss=4.617e+03, acc=0.057, loss_head1=nan, "
    "optim0_lr0=1.000e-03, time=1 minute and 3.5 seconds, total_count=3, "
    "[valid] loss=33.213, acc=0.000e+00, time=0.03 seconds, total_count=1, [att_plot] time=1 second"
)


def test_results_line_is_parsed_by_section():
    epoch, stats = parse_results(HEAD + RESULTS)
    assert epoch == 3
    train = {"iter_time": 0.012, "loss": 4617.0, "acc": 0.057, "optim0_lr0": 0.001}
    assert math.isnan(stats["train"].pop("loss_head1"))
    assert stats["train"] == train | {"total_count": 3}
    assert stats["valid"] == {"loss": 33.213, "acc": 0.0, "total_count": 1}
    assert parse_results(HEAD + "3epoch:train:1-20batch: loss=1.0") is None


def test_a_repeated_epoch_counts_as_it_was_last_run(tmp_path):
    log = tmp_path / "train.log"
    lines = [f"{HEAD}{epoch}epoch results: [valid] loss={loss}" for epoch, loss in [(2, 5), (1, 9)]]
    log.write_text("\n".join([*lines, f"{HEAD}2epoch results: [valid] loss=4"]) + "\n")
    epochs = read_epochs(log)
    assert list(epochs) == [1, 2]
    assert epochs[2]["valid"]["loss"] == 4


def test_missing_and_unfinished_logs_are_errors(tmp_path):
    for message in ("train first", "no finished epoch"):
        assert_refused(message, read_epochs, tmp_path / "train.log", error=ValueError)
        (tmp_path / "train.log").write_text("Traceback\n")


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """Return the time in seconds that `time.monotonic` returns, for tests to change."""
    seconds = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: seconds[0])
    return seconds


def test_training_progress_estimates_from_the_speed_of_this_run(now):
    progress = TrainingProgress(Path("train.log"))
    assert progress.text() == "training: starting, 0:00"
    progress.feed(HEAD + "[train] mini-batch sizes summary: N-batch=40, mean=16")
    progress.feed(HEAD + "[valid] mini-batch sizes summary: N-batch=4, mean=16")
    # Resumed: four of ten epochs were done by an earlier run.
    progress.feed(HEAD + "5/10epoch started. Estimated time to finish: unknown")
    assert "eta" not in progress.text()
    progress.feed(HEAD + "5epoch:train:1-20batch: iter_time=0.1, loss=2.5, acc=0.75, time=3")
    now[0] = 60.0
    expected = "training: epoch 5/10, step 20/40, loss 2.500, acc 0.750, elapsed 1:00, eta 11:00"
    assert progress.text() == expected
    assert progress.feed(HEAD + RESULTS) == RESULTS


def test_epoch_length_may_differ_from_the_sampler():
    progress = TrainingProgress(Path("train.log"))
    for line in (
        "[train] mini-batch sizes summary: N-batch=4000, mean=16",
        "1/2epoch started",
        "1epoch:train:81-100batch: loss=2.5",
        "1epoch results: [train] loss=2.5, total_count=110, [valid] total_count=5",
        "2/2epoch started",
    ):
        progress.feed(HEAD + line)
    assert "step 0/110" in progress.text()


def test_follower_gives_complete_lines_once(tmp_path):
    log = tmp_path / "x.log"
    follower = progress_module.LogFollower(log)
    assert follower.new_lines() == []
    log.write_text("one\ntw")
    assert follower.new_lines() == ["one"]
    with log.open("a") as stream:
        stream.write("o\n")
    assert follower.new_lines() == ["two"]


def test_jobs_progress_counts_finished_utterances_of_all_logs(tmp_path):
    logs = [tmp_path / "1.log", tmp_path / "2.log"]
    stream = io.StringIO()
    progress = JobsProgress("test", logs, 3, LiveLine(stream, file_interval_s=0))
    logs[0].write_text(HEAD + "speech length: 1\n" + HEAD + "best hypo: a\n")
    progress.show()
    logs[1].write_text((HEAD + "best hypo: best hypo\n") * 2)
    progress.show(last=True)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("test: 1/3 utterances, elapsed 0:00, eta ")
    assert lines[-1] == "test: 3/3 utterances, elapsed 0:00"


def test_a_rewritten_log_is_counted_again(tmp_path):
    log = tmp_path / "1.log"
    progress = JobsProgress("test", [log], 9, LiveLine(io.StringIO()))
    log.write_text((HEAD + "best hypo: a long one\n") * 5)
    progress.show()
    log.write_text(HEAD + "started again\n")
    progress.show()
    assert progress.text().startswith("test: 0/9 utterances, ")
    with log.open("a") as added:
        added.write(HEAD + "resumed: 5 of 9 utterances were decoded before\n")
        added.write((HEAD + "best hypo: a\n") * 5)
    progress.show(where="job 7: 1 running")
    assert progress.text() == "test: 5/9 utterances (5 of an earlier run), elapsed 0:00"


def test_remaining_time_is_estimated_from_this_run(tmp_path, now):
    log, stream = tmp_path / "1.log", io.StringIO()
    progress = JobsProgress("test", [log], 12, LiveLine(stream))
    text = HEAD + "resumed: 6 of 12 utterances were decoded before\n"
    log.write_text(text + (HEAD + "best hypo: a\n") * 8)
    now[0] = 60.0
    progress.show(where="job 7: 1 running")
    line = "test: 8/12 utterances (6 of an earlier run), elapsed 1:00, eta 2:00, job 7: 1 running\n"
    assert stream.getvalue() == line


def test_training_watch_prints_results_of_this_run_only(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(HEAD + "1epoch results: [train] loss=9\n")
    stream = io.StringIO()
    watch = TrainingProgress(log, LiveLine(stream, file_interval_s=1000))
    with log.open("a") as added:
        added.write(HEAD + RESULTS + "\n")
    watch.show(last=True)
    assert "3epoch results" in stream.getvalue()
    assert "1epoch results" not in stream.getvalue()


@cases((True, "\r\033[Kone\r\033[Klasting\none\r\033[Ktwo\n"), (False, "lasting\ntwo\n"))
def test_the_line_of_a_terminal_is_rewritten_and_files_get_few_lines(terminal, expected):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    line = LiveLine(stream, file_interval_s=1000)
    line.update("one")
    line.print("lasting")
    line.update("two", last=True)
    assert stream.getvalue() == expected


def test_clock():
    assert [*map(progress_module.clock, (0, 61.9, 3661))] == ["0:00", "1:01", "1:01:01"]
