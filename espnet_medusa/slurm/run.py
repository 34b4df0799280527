"""Submits an array job, waits for its tasks, and says how those ended that did not end well."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.errors import InputError
from espnet_medusa.recipe.jobs import SHELL_SIGNAL, Failure, Job, interruptible
from espnet_medusa.slurm import queue
from espnet_medusa.slurm.array_job import ArrayJob
from espnet_medusa.slurm.configuration import Request

# squeue is asked after a tenth of the time that has gone by, within these limits: what is short
# ends soon, and what is long does not burden Slurm.
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.5, 10.0
SHOW_S = 1.0  # between looks at the logs
CANCELLING_S = 60.0  # Slurm kills what does not end by itself within KillWait, 30 s
# Of a task that Slurm says nothing of any more (MinJobAge, 300 s): what it left decides.
FORGOTTEN = queue.TaskState("COMPLETED")


@dataclass
class Submitted:
    """An array job that Slurm has taken.

    Attributes:
        array: The job.
        job_id: Slurm's name of it.
        ended: Last states of the tasks that have ended.
        states: Of all tasks, as Slurm says; None: it does not answer.
    """

    array: ArrayJob
    job_id: str
    ended: dict[int, queue.TaskState] = field(default_factory=dict)
    states: dict[int, queue.TaskState] | None = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether all tasks have ended."""
        return len(self.ended) == len(self.array.numbers)

    def look(self) -> None:
        """Ask Slurm; where it does not answer, what tasks left tells which have ended."""
        self.states = queue.ask(self.job_id)
        for number in self.array.numbers:
            if self.states is None:
                gone, state = self.array.ending(number) is not None, FORGOTTEN
            else:
                state = self.states.get(number, FORGOTTEN)
                gone = state.has_ended
            if gone:
                self.ended.setdefault(number, state)

    def summary(self) -> str:
        """The job and where its tasks are, for the line of progress."""
        where = "Slurm does not answer" if self.states is None else queue.summarize(self.states)
        return f"job {self.job_id}: {where}".removesuffix(": ")

    def failures(self) -> list[Failure]:
        """The tasks that have ended badly, in the order of their numbers."""
        found = (self._failure(number) for number in sorted(self.ended))
        return [failure for failure in found if failure is not None]

    def restarted(self) -> list[int]:
        """Numbers of the tasks that Slurm started more than once."""
        endings = {number: self.array.ending(number) for number in self.array.numbers}
        return [number for number, ending in endings.items() if ending and ending.restarts]

    def _failure(self, number: int) -> Failure | None:
        state, left = self.ended[number], self.array.ending(number)
        job = Job(f"job {number}", self.array.command, self.array.log_of(number))
        if state.name not in ("COMPLETED", "FAILED"):
            return Failure(job, None, f"{queue.ENDED[state.name]} (Slurm: {state.name})")
        if left is not None:
            # A shell's word for a signal; elsewhere a process that one ended has minus its number.
            status = SHELL_SIGNAL - left.status if left.status > SHELL_SIGNAL else left.status
            return Failure(job, status) if status else None
        if state.name == "FAILED":
            return Failure(job, None, f"failed (Slurm: {state.reason})")
        if state is FORGOTTEN:
            return Failure(job, None, "left Slurm's queue without an exit status")
        return None


def run_array(
    array: ArrayJob,
    request: Request,
    stop_on_failure: bool,
    show: Callable[[str], None] = lambda summary: None,
) -> tuple[list[Failure], list[int]]:
    """Run an array job and wait for it.

    Args:
        array: What to run, in this folder.
        request: What it asks Slurm for.
        stop_on_failure: Cancel the other tasks as soon as one fails.
        show: Shows progress; takes the job's id and how many tasks wait and run.

    Returns:
        The tasks that did not end well, and the numbers of those that Slurm started again.

    Raises:
        InputError: Slurm refuses the job, or still has one of an earlier run.
        KeyboardInterrupt, Interrupted: Ctrl-C or SIGTERM; the tasks were cancelled before.
    """
    refuse_active_jobs(array.folder)
    with interruptible():
        job = Submitted(array, _submit(array, request))
        try:
            _wait(job, stop_on_failure, show)
            return job.failures(), job.restarted()
        finally:
            if not job.is_over:
                _cancel(job)
            if job.is_over:
                array.job_file.unlink(missing_ok=True)


def refuse_active_jobs(folder: Path) -> None:
    """Make sure that no job of an earlier run writes there still; two would spoil each other's.

    Args:
        folder: Of jobs' logs.

    Raises:
        InputError: Slurm's queue has such a job, or cannot be asked here.
    """
    for record in sorted(folder.glob("q/*.job")):
        job_id = record.read_text(encoding="utf-8").strip()
        if shutil.which("squeue") is None:
            raise InputError(
                f"{record}: job {job_id} of an earlier run may be in Slurm's queue, and squeue is "
                "not in PATH to ask; remove the file where the job has ended"
            )
        states = queue.ask(job_id)
        if states is None:
            raise InputError(
                f"{record}: job {job_id} of an earlier run may be in Slurm's queue, which does not "
                "answer; run the stage again when it does, or remove the file where the job has "
                "ended"
            )
        active = [state for state in states.values() if not state.has_ended]
        if active:
            raise InputError(
                f"{record}: job {job_id} of an earlier run is still in Slurm's queue, with "
                f"{len(active)} tasks; wait for it or `scancel {job_id}`, then run the stage again"
            )


def _submit(array: ArrayJob, request: Request) -> str:
    array.job_file.parent.mkdir(parents=True, exist_ok=True)
    for number in array.numbers:
        array.log_of(number).parent.mkdir(parents=True, exist_ok=True)
        array.ending_file(number).unlink(missing_ok=True)
    array.script_file.write_text(array.script(Path.cwd()), encoding="utf-8")
    program, *options = request.command
    options = [*array.sbatch_options(request.most_at_once), *options]  # the later ones win
    job_id = queue.submit([program, *options, str(array.script_file)])
    array.job_file.write_text(f"{job_id}\n", encoding="utf-8")
    return job_id


def _wait(job: Submitted, stop_on_failure: bool, show: Callable[[str], None]) -> None:
    started = time.monotonic()
    while True:
        job.look()
        show(job.summary())
        if job.is_over or (stop_on_failure and job.failures()):
            return
        now = time.monotonic()
        pause_s = min(LONGEST_LOOK_S, max(SHORTEST_LOOK_S, (now - started) / 10))
        while (left_s := now + pause_s - time.monotonic()) > 0:
            time.sleep(min(SHOW_S, left_s))
            show(job.summary())


def _cancel(job: Submitted) -> None:
    """End what has not ended, and wait until it writes no more."""
    queue.cancel(job.job_id)
    deadline = time.monotonic() + CANCELLING_S
    while not job.is_over and time.monotonic() < deadline:
        time.sleep(SHORTEST_LOOK_S)
        job.look()
