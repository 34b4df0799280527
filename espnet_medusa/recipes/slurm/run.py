"""Submits an array job, waits for its tasks, and returns those that failed."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.recipes.jobs import SHELL_SIGNAL, Failure, Job, interruptible
from espnet_medusa.recipes.slurm import queue
from espnet_medusa.recipes.slurm.array_job import ArrayJob
from espnet_medusa.recipes.slurm.configuration import Request

# Interval of squeue calls: a tenth of the elapsed time, within these limits.
SHORTEST_POLL_S, LONGEST_POLL_S = 0.5, 10.0
SHOW_S = 1.0  # interval of progress updates
CANCELLING_S = 60.0  # Slurm kills a cancelled task after KillWait, 30 s
# State of a task that is no longer in Slurm's queue: its ending file has the exit status.
FORGOTTEN = queue.TaskState("COMPLETED")


@dataclass
class Submitted:
    array: ArrayJob
    job_id: str  # Slurm's id
    ended: dict[int, queue.TaskState] = field(default_factory=dict)  # final states
    # States of all tasks in Slurm's queue; None: Slurm does not answer.
    states: dict[int, queue.TaskState] | None = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return len(self.ended) == len(self.array.numbers)

    def poll(self) -> None:
        """Update the states, from the tasks' ending files if Slurm does not answer."""
        self.states = queue.task_states(self.job_id)
        for number in self.array.numbers:
            state = (self.states or {}).get(number, FORGOTTEN)
            has_ended = self.array.ending(number) if self.states is None else state.has_ended
            if has_ended:
                self.ended.setdefault(number, state)

    def summary(self) -> str:
        """Return the job's id and the states of its tasks, for the progress line."""
        where = "Slurm does not answer" if self.states is None else queue.summarize(self.states)
        return f"job {self.job_id}: {where}".removesuffix(": ")

    def failures(self) -> list[Failure]:
        return [failure for number in sorted(self.ended) if (failure := self._failure(number))]

    def restarted(self) -> list[int]:
        endings = {number: self.array.ending(number) for number in self.array.numbers}
        return [number for number, ending in endings.items() if ending and ending.restarts]

    def _failure(self, number: int) -> Failure | None:
        state, ending = self.ended[number], self.array.ending(number)
        job = Job(f"job {number}", self.array.command, self.array.log_of(number))
        if state.name not in ("COMPLETED", "FAILED"):
            return Failure(job, None, f"{queue.ENDED[state.name]} (Slurm: {state.name})")
        if ending is not None:
            # A shell adds 128 to the number of a signal; subprocess negates the number.
            is_signal = ending.status > SHELL_SIGNAL
            status = SHELL_SIGNAL - ending.status if is_signal else ending.status
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
    """Run an array job in the current folder; return failed tasks, and numbers of restarted ones.

    Args:
        stop_on_failure: Cancel the other tasks as soon as one fails.
        show: Shows progress; takes the job's id with the numbers of pending and running tasks.

    Raises:
        InputError: Slurm refuses the job, or an earlier run's job is still in its queue.
        KeyboardInterrupt, Interrupted: Ctrl-C or SIGTERM; raised after the tasks are cancelled.
    """
    refuse_active_jobs(array.folder)
    with interruptible():
        job = Submitted(array, _submit(array, request))
        try:
            _wait(job, stop_on_failure, show)
            return job.failures(), job.restarted()
        finally:
            if not job.is_over:
                queue.cancel(job.job_id)
                deadline = time.monotonic() + CANCELLING_S
                while not job.is_over and time.monotonic() < deadline:
                    time.sleep(SHORTEST_POLL_S)
                    job.poll()
            if job.is_over:
                array.job_file.unlink(missing_ok=True)


def refuse_active_jobs(folder: Path) -> None:
    """Raise InputError if a job of an earlier run may still write to a folder of logs."""
    for record in sorted(folder.glob("q/*.job")):
        job_id = record.read_text(encoding="utf-8").strip()
        earlier = f"{record}: job {job_id} of an earlier run"
        where = f"{earlier} may be in Slurm's queue"
        remedy = "remove the file if the job has ended"
        if shutil.which("squeue") is None:
            raise InputError(f"{where}, and squeue is not in PATH; {remedy}")
        if (states := queue.task_states(job_id)) is None:
            again = "run the stage again when it does"
            raise InputError(f"{where}, which does not answer; {again}, or {remedy}")
        if active := sum(not state.has_ended for state in states.values()):
            raise InputError(
                f"{earlier} is still in Slurm's queue, with {active} tasks; wait for it or "
                f"`scancel {job_id}`, then run the stage again"
            )


def _submit(array: ArrayJob, request: Request) -> str:
    array.job_file.parent.mkdir(parents=True, exist_ok=True)
    for number in array.numbers:
        array.log_of(number).parent.mkdir(parents=True, exist_ok=True)
        array.ending_file(number).unlink(missing_ok=True)
    script = array.folder / "q" / f"{array.name}.sh"  # stays there for the user
    script.write_text(array.script(Path.cwd()), encoding="utf-8")
    program, *options = request.command
    options = [*array.sbatch_options(request.most_at_once), *options]  # the later ones win
    job_id = queue.submit([program, *options, str(script)])
    array.job_file.write_text(f"{job_id}\n", encoding="utf-8")
    return job_id


def _wait(job: Submitted, stop_on_failure: bool, show: Callable[[str], None]) -> None:
    started = time.monotonic()
    while True:
        job.poll()
        show(job.summary())
        if job.is_over or (stop_on_failure and job.failures()):
            return
        now = time.monotonic()
        pause_s = min(LONGEST_POLL_S, max(SHORTEST_POLL_S, (now - started) / 10))
        while (left_s := now + pause_s - time.monotonic()) > 0:
            time.sleep(min(SHOW_S, left_s))
            show(job.summary())
