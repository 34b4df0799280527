"""Killed stages, which resume or do not, and what is compared after killed training."""

import random
import subprocess

import psutil
import pytest
import torch
from harness import contents, differing
from killed_stages import TIMED, Stages, disturbed, finish, kill_some
from killed_training import EPOCH, START, WRITING, describe, leaves_gradients, read_tensors

from espnet_medusa.errors import InputError
from espnet_medusa.training.trainer import GRADIENTS

RESTARTS = "mkdir -p out; echo one > out/.part; sleep 0.2; mv out/.part out/text"
KEEPS_HALVES = "mkdir -p out; echo one >> out/text; sleep 0.2; echo two >> out/text"


@pytest.mark.parametrize(("script", "wrong"), [(RESTARTS, []), (KEEPS_HALVES, ["text"])])
def test_files_of_killed_stages_are_compared(tmp_path, script, wrong):
    stages = Stages("stage", ["sh", "-c", script], "out")
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    expected, seconds = finish(stages, tmp_path / "whole")
    runs = disturbed(stages, tmp_path / "killed", 4, seconds, random.Random(0))
    assert sorted({name for run in runs for name in differing(run, expected)}) == wrong


def test_no_process_survives():
    process = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60"])
    while len(children := psutil.Process(process.pid).children()) < 2:
        pass
    kill_some(process, random.Random(1))
    assert process.returncode == -9
    _, alive = psutil.wait_procs(children, timeout=5)
    assert all(child.status() == psutil.STATUS_ZOMBIE for child in alive)


def test_logs_and_times_are_not_compared_and_a_failed_stage_ends_the_check(tmp_path):
    with pytest.raises(InputError, match="stage: no such luck"):
        finish(Stages("stage", ["sh", "-c", "echo no such luck >&2; exit 2"], ""), tmp_path)
    for name in ("text", "statistics.json", "logdir/x.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert contents(tmp_path, TIMED) == {"text": b"text", "statistics.json": b""}
    assert differing({"a": b"1", "b": b"2"}, {"a": b"1", "c": b"2"}) == ["b", "c"]


def test_tensors_are_compared_bit_by_bit(tmp_path):
    folders = [tmp_path / name for name in ("one", "other")]
    weights = {"a": torch.ones(3), "b": torch.zeros(2)}
    for folder in folders:
        folder.mkdir()
        torch.save(weights, folder / "1epoch.pth")
        torch.save({"of": str(folder)}, folder / "checkpoint.pth")
    assert differing(*map(read_tensors, folders)) == []
    torch.save(weights | {"b": torch.tensor([0.0, 1e-9])}, folders[1] / "1epoch.pth")
    torch.save({"a": weights["a"]}, folders[0] / "2epoch.pth")
    assert differing(*map(read_tensors, folders)) == ["1epoch.pth:b", "2epoch.pth:a"]


def test_remaining_gradients_are_reported(tmp_path):
    for state in ({}, {GRADIENTS: {0: torch.ones(1)}}):
        torch.save({"optimizers": [state]}, tmp_path / "checkpoint.pth")
        assert leaves_gradients(tmp_path) == bool(state)


def test_kills_are_counted_by_their_moments():
    losses = {(1, "train"): 3.0, (1, "valid"): 2.5, (2, "train"): 2.0, (2, "valid"): 1.5}
    log = "1/2epoch started\n1/2epoch started\n2/2epoch started\n"
    assert describe([START, WRITING, EPOCH, EPOCH], losses, log) == (
        "2 epochs, training loss 3.00 to 2.00; one of two processes was killed 4 times: 1 as it "
        "started, 2 in an epoch, 1 while an epoch's end was written; epochs started 3 times"
    )
