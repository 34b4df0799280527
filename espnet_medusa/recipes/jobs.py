"""Runs parallel processes on this machine, each with its log, as Kaldi's run.pl does."""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import is_full

GPUS = "CUDA_VISIBLE_DEVICES"
LOG_LINES = 20  # of a failed job, shown to the user
SHELL_SIGNAL = 128  # a shell's exit status after signal n is 128 + n


def shell_status(status: int) -> int:
    """Convert a process's status, -n after signal n, to that of a shell."""
    return status if status >= 0 else SHELL_SIGNAL - status


@dataclass(frozen=True)
class Job:
    name: str
    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)  # added to os.environ
    append: bool = False  # whether it appends to an existing log


@dataclass(frozen=True)
class Failure:
    """A job that failed and was not stopped by us."""

    job: Job
    status: int | None  # exit status; -n: killed by signal n; None: unknown, see ``cause``
    cause: str = ""  # reason if the status is unknown, such as ``was cancelled``

    @property
    def ending(self) -> str:
        """The reason in a form that follows the job's name."""
        return self.cause or f"failed with status {self.status}"


class Interrupted(Exception):
    """SIGTERM stopped the runner; raised after its jobs have ended."""


def parse_range(text: str) -> range:
    """Parse `JOB=1:4` into the numbers of the jobs; raise ValueError for other text."""
    name, _, numbers = text.partition("=")
    first, _, last = numbers.partition(":")
    if name != "JOB" or not first.isdecimal() or not (last or first).isdecimal():
        raise ValueError(f"{text}: allowed: JOB=FIRST:LAST, for example JOB=1:4")
    jobs = range(int(first), int(last or first) + 1)
    if not jobs:
        raise ValueError(f"{text}: names no job; the first number must not exceed the last")
    return jobs


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return this process's GPUs for CUDA_VISIBLE_DEVICES; raise ValueError if there is none."""
    listed = environment.get(GPUS)
    if listed is None:
        import torch  # slow to import

        gpus = [str(index) for index in range(torch.cuda.device_count())]
    else:
        gpus = [name for name in listed.split(",") if name]
    if not gpus:
        raise ValueError("no GPU is visible; use --ngpu 0 and --gpu_inference false")
    return gpus


def check_gpus(count: int) -> None:
    """Raise InputError if torch finds fewer GPUs on this machine."""
    if not count:
        return
    import torch  # slow to import

    found = torch.cuda.device_count()
    if found < count:
        cpu = "0, which uses the CPU"
        allowed = f"{cpu}, to {found}" if found else cpu
        raise InputError(f"--ngpu {count}: torch finds {found} GPUs here; allowed: {allowed}")


def _start(job: Job) -> subprocess.Popen:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab" if job.append else "wb") as log:
        log.write(f"# {' '.join(job.command)}\n# started at {time.strftime('%c')}\n".encode())
        log.flush()
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        environment = {**os.environ, **job.environment}
        try:
            # In its own session, so that `stop` ends the processes that it starts, too.
            return subprocess.Popen(job.command, env=environment, start_new_session=True, **streams)
        except OSError as error:
            raise ValueError(f"cannot start {job.command[0]}: {error.strerror}") from error


def _signal(process: subprocess.Popen, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def stop(processes: Sequence[subprocess.Popen], patience_s: float = 5.0) -> None:
    """End processes and their children with SIGTERM, and after `patience_s` with SIGKILL."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        _signal(process, signal.SIGKILL)  # children may outlive the process
        process.wait()


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM raise `Interrupted` inside the block, as Ctrl-C raises KeyboardInterrupt."""

    def stop_here(number: int, frame: object) -> None:
        raise Interrupted(f"stopped by signal {number}")

    previous = signal.signal(signal.SIGTERM, stop_here)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def run(
    jobs: Sequence[Job],
    most_at_once: int,
    stop_on_failure: bool,
    watch: Callable[[], None] = lambda: None,
    poll_s: float = 0.2,
) -> list[Failure]:
    """Run jobs in this order, and return those that failed.

    Args:
        stop_on_failure: End the other jobs as soon as one fails.
        watch: Called after each poll of the processes; shows progress.

    Raises:
        ValueError: A command cannot be started.
        KeyboardInterrupt, Interrupted: Ctrl-C or SIGTERM; raised after the jobs have ended.
    """
    waiting, running, failures = list(jobs), {}, []
    with interruptible():
        try:
            while waiting or running:
                while waiting and len(running) < most_at_once:
                    job = waiting.pop(0)
                    running[_start(job)] = job
                for process in [process for process in running if process.poll() is not None]:
                    job = running.pop(process)
                    if process.returncode:
                        failures.append(Failure(job, process.returncode))
                watch()
                if failures and stop_on_failure:
                    break
                if running:
                    with suppress(subprocess.TimeoutExpired):
                        next(iter(running)).wait(timeout=poll_s)
            return failures
        finally:
            stop(list(running))


def describe(failure: Failure, shorten: Callable[[str], str] = str) -> str:
    """Return the last lines of a failed job's log, how it failed, and the log's path.

    ``shorten`` removes uninformative text from the log.
    """
    log = failure.job.log
    ended = f"{failure.job.name} {failure.ending}: {log}"
    if is_full(log):  # then the log itself lacks the message
        return f"{ended}: {os.strerror(errno.ENOSPC)}"
    text = shorten(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else ""
    return "\n".join([*text.rstrip("\n").split("\n")[-LOG_LINES:], ended])
