"""Slurm's queue: submit an array job, read the states of its tasks, cancel them."""

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espnet_medusa.data.errors import InputError

# Final states in squeue's long form, and how a task with this state ended.
ENDED = {
    "COMPLETED": "",
    "FAILED": "failed",
    "CANCELLED": "was cancelled",
    "TIMEOUT": "ran out of time",
    "DEADLINE": "missed its deadline",
    "OUT_OF_MEMORY": "ran out of memory",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "had a node that did not start",
    "PREEMPTED": "was preempted",
    "REVOKED": "was revoked",
}
UNKNOWN_JOB = "Invalid job id"
FORMAT = "%K|%T|%r"
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class TaskState:
    name: str
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        return self.name in ENDED


def parse_states(text: str) -> dict[int, TaskState]:
    """Parse squeue's output in `FORMAT` into states by task number."""
    fields = [line.strip().split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    return {int(number): TaskState(state, reason) for number, state, reason in fields}


def summarize(states: Mapping[int, TaskState]) -> str:
    """Count states, with the reasons of pending tasks: `2 running, 3 pending (Resources)`."""
    counts = Counter(state.name.lower() for state in states.values() if not state.has_ended)
    reasons = {state.reason for state in states.values() if state.name == "PENDING"}
    why = {"pending": f" ({', '.join(sorted(reasons))})"}
    return ", ".join(f"{count} {name}{why.get(name, '')}" for name, count in counts.most_common())


def call(*command: str, timeout_s: float | None = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs; raise InputError if it is not in PATH."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except FileNotFoundError:
        raise InputError(
            f"{command[0]}: not in PATH; --cmd_backend slurm needs a machine that submits to Slurm"
        ) from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {TIMEOUT_S:.0f} s")


def submit(command: Sequence[str]) -> str:
    """Submit a job and return its id, followed by `;cluster` if Slurm names a cluster.

    ``command`` is sbatch, its options and the script. Raises InputError if Slurm refuses the job.
    """
    # No timeout: a slow controller may already have accepted the job.
    done = call(command[0], "--parsable", *command[1:], timeout_s=None)
    if done.returncode:
        reason = " ".join(done.stderr.split())
        raise InputError(f"{reason or command[0]}; the command was: {' '.join(command)}")
    return done.stdout.split()[-1]


def task_states(job_id: str) -> dict[int, TaskState] | None:
    """Return the states of a job's tasks; None: no answer.

    Slurm forgets ended tasks after some time (MinJobAge, 300 s); they are missing.
    """
    number, clusters = _address(job_id)
    listed = "--noheader", "--array", "--states=all", f"--format={FORMAT}", f"--jobs={number}"
    done = call("squeue", *listed, *clusters)
    if done.returncode:
        return {} if UNKNOWN_JOB in done.stderr else None
    return parse_states(done.stdout)


def cancel(job_id: str) -> None:
    number, clusters = _address(job_id)
    call("scancel", number, *clusters)


def _address(job_id: str) -> tuple[str, list[str]]:
    number, _, cluster = job_id.partition(";")
    return number, [f"--clusters={cluster}"] if cluster else []
