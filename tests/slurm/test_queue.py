"""The parser of squeue's output."""

import pytest

from espnet_medusa.errors import InputError
from espnet_medusa.slurm import queue
from espnet_medusa.slurm.queue import TaskState, parse_states, summarize

ANSWER = """\
1|COMPLETED|None
2|RUNNING|None
3|RUNNING|None
4|PENDING|Resources
10|PENDING|ReqNodeNotAvail, UnavailableNodes:node[1-2]
11|CANCELLED|None
"""


def test_states_are_parsed_by_task_number():
    states = parse_states(ANSWER)
    assert [*states] == [1, 2, 3, 4, 10, 11]
    assert states[10] == TaskState("PENDING", "ReqNodeNotAvail, UnavailableNodes:node[1-2]")
    assert [number for number, state in states.items() if state.has_ended] == [1, 11]
    assert parse_states("CLUSTER: other\n") == {}


def test_the_summary_counts_active_tasks():
    shown = summarize(parse_states(ANSWER))
    assert shown == (
        "2 running, 2 pending (ReqNodeNotAvail, UnavailableNodes:node[1-2], Resources)"
    )
    assert summarize({1: TaskState("COMPLETED")}) == ""


def test_a_machine_without_slurm_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="sbatch: not in PATH; --cmd_backend slurm"):
        queue.submit(["sbatch", "x.sh"])
