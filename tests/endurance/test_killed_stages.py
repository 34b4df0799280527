"""Stages of a shell that are killed: one that begins anew, and one that takes halves for whole."""

import random
import subprocess

import psutil
import pytest
from killed_stages import Stages, contents, differing, disturbed, finish, kill_some

from espnet_medusa.errors import InputError

ANEW = "mkdir -p out; echo one > out/.part; sleep 0.2; mv out/.part out/text"
HALVES = "mkdir -p out; echo one >> out/text; sleep 0.2; echo two >> out/text"


def stages(script: str) -> Stages:
    return Stages("stage", ["sh", "-c", script], lambda recipe: recipe / "out")


@pytest.mark.parametrize(("script", "wrong"), [(ANEW, []), (HALVES, ["text"])])
def test_what_is_left_is_compared(tmp_path, script, wrong):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    took = finish(stages(script), tmp_path / "whole")
    expected = contents(tmp_path / "whole" / "out")
    left = disturbed(stages(script), tmp_path / "killed", 4, took, random.Random(0))
    assert sorted({name for one in left for name in differing(one, expected)}) == wrong


def test_nothing_is_left_running(tmp_path):
    process = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60"])
    while len(children := psutil.Process(process.pid).children()) < 2:
        pass
    kill_some(process, random.Random(1))
    assert process.returncode == -9
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def test_stages_that_fail_undisturbed_end_the_check(tmp_path):
    with pytest.raises(InputError, match="stage: no such luck"):
        finish(stages("echo no such luck >&2; exit 2"), tmp_path)


def test_logs_and_times_are_not_compared(tmp_path):
    for name in ("text", "statistics.json", "logdir/x.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert contents(tmp_path) == {"text": b"text"}
    assert differing({"a": b"1", "b": b"2"}, {"a": b"1", "c": b"2"}) == ["b", "c"]
