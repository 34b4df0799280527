"""What Slurm's queue says of an array job's tasks."""

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espnet_medusa.errors import InputError

# States (squeue's, spelled out) that nothing follows, and how a task with one of them ended.
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
ANSWER_S = 60.0


@dataclass(frozen=True)
class TaskState:
    """A task's state, and Slurm's reason for it."""

    name: str
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether nothing follows."""
        return self.name in ENDED


def parse_states(text: str) -> dict[int, TaskState]:
    """States of tasks by their numbers, as squeue writes them in `FORMAT`."""
    fields = [line.strip().split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    return {int(number): TaskState(state, reason) for number, state, reason in fields}


def summarize(states: Mapping[int, TaskState]) -> str:
    """States counted, with the reasons of those that wait: `2 running, 3 pending (Resources)`."""
    counts = Counter(state.name.lower() for state in states.values() if not state.has_ended)
    reasons = {state.reason for state in states.values() if state.name == "PENDING"}
    shown = []
    for name, count in counts.most_common():
        why = f" ({', '.join(sorted(reasons))})" if name == "pending" else ""
        shown.append(f"{count} {name}{why}")
    return ", ".join(shown)


def call(*command: str, timeout_s: float | None = ANSWER_S) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs.

    Raises:
        InputError: It is not there.
    """
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except FileNotFoundError:
        raise InputError(
            f"{command[0]}: not in PATH; --cmd_backend slurm is for machines that submit to Slurm"
        ) from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {ANSWER_S:.0f} s")


def submit(command: Sequence[str]) -> str:
    """Submit a job and return its id, with `;cluster` where Slurm names one.

    Args:
        command: sbatch, its options and the script.

    Raises:
        InputError: Slurm refuses it.
    """
    # A controller that is slow to answer may have taken the job.
    done = call(command[0], "--parsable", *command[1:], timeout_s=None)
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise InputError(f"{said or command[0]}; what was asked for: {' '.join(command)}")
    return done.stdout.split()[-1]


def ask(job_id: str) -> dict[int, TaskState] | None:
    """States of a job's tasks; those that Slurm has forgotten are missing; None: no answer."""
    number, clusters = _address(job_id)
    done = call(
        *("squeue", "--noheader", "--array", "--states=all", f"--format={FORMAT}"),
        *(f"--jobs={number}", *clusters),
    )
    if done.returncode:
        return {} if UNKNOWN_JOB in done.stderr else None
    return parse_states(done.stdout)


def cancel(job_id: str) -> None:
    """Cancel all tasks of a job that have not ended."""
    number, clusters = _address(job_id)
    call("scancel", number, *clusters)


def _address(job_id: str) -> tuple[str, list[str]]:
    """A job's number, and the option that names its cluster."""
    number, _, cluster = job_id.partition(";")
    return number, [f"--clusters={cluster}"] if cluster else []
