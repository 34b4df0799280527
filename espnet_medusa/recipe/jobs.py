"""Runs local processes side by side, each with its log; stands in for Kaldi's run.pl."""

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.files.atomic import is_full

GPUS = "CUDA_VISIBLE_DEVICES"
SHELL_SIGNAL = 128  # of a process that signal n has ended a shell says 128 + n


@dataclass(frozen=True)
class Job:
    """One process: its name, command line, log file and additions to the environment."""

    name: str
    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    append: bool = False


@dataclass(frozen=True)
class Failure:
    """A job that ended badly, not one that we stopped.

    Attributes:
        job: The job.
        status: Its exit status; below 0: a signal ended it; None: something else did.
        cause: What else did, such as ``was cancelled``.
    """

    job: Job
    status: int | None
    cause: str = ""

    @property
    def ending(self) -> str:
        """How it ended, to be said behind its name."""
        return self.cause or f"failed with status {self.status}"


class Interrupted(Exception):
    """The runner was told to stop (SIGTERM); its jobs are ended first."""


def parse_range(text: str) -> range:
    """Parse `JOB=1:4` into the numbers of the jobs.

    Raises:
        ValueError: The text has another form, or names no job.
    """
    name, _, numbers = text.partition("=")
    first, _, last = numbers.partition(":")
    if name != "JOB" or not first.isdecimal() or not (last or first).isdecimal():
        raise ValueError(f"{text}: expected JOB=FIRST:LAST, for example JOB=1:4")
    found = range(int(first), int(last or first) + 1)
    if not found:
        raise ValueError(f"{text}: names no job; the first number must not exceed the last")
    return found


def tail(path: Path, lines: int = 20, shorten: Callable[[str], str] = str) -> str:
    """Last lines of a log, shortened before; an empty string when there is none."""
    if not path.exists():
        return ""
    text = shorten(path.read_text(encoding="utf-8", errors="replace"))
    return "\n".join(text.rstrip("\n").split("\n")[-lines:])


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Names of the GPUs that this process may use, for CUDA_VISIBLE_DEVICES.

    Raises:
        ValueError: No GPU is visible.
    """
    listed = environment.get(GPUS)
    if listed is None:
        import torch  # Slow to import, needed here only.

        gpus = [str(index) for index in range(torch.cuda.device_count())]
    else:
        gpus = [name for name in listed.split(",") if name]
    if not gpus:
        raise ValueError("no GPU is visible; use --ngpu 0 and --gpu_inference false")
    return gpus


def _start(job: Job) -> subprocess.Popen:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab" if job.append else "wb") as log:
        log.write(f"# {' '.join(job.command)}\n# started at {time.strftime('%c')}\n".encode())
        log.flush()
        try:
            # A session of its own, so that whatever the job starts ends with it.
            return subprocess.Popen(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **job.environment},
                start_new_session=True,
            )
        except OSError as error:
            raise ValueError(f"cannot start {job.command[0]}: {error.strerror}") from error


def _signal(process: subprocess.Popen, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def stop(processes: Sequence[subprocess.Popen], patience_s: float = 5.0) -> None:
    """End processes and their children: ask first, then insist."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        # The leader may be gone while its children live on.
        _signal(process, signal.SIGKILL)
        process.wait()


def _on_terminate(number: int, frame: object) -> None:
    raise Interrupted(f"stopped by signal {number}")


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside, SIGTERM raises `Interrupted`, as Ctrl-C raises KeyboardInterrupt."""
    previous = signal.signal(signal.SIGTERM, _on_terminate)
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
    """Run jobs and wait for them.

    Args:
        jobs: What to run, started in this order.
        most_at_once: Processes that may run side by side.
        stop_on_failure: End the other jobs as soon as one fails.
        watch: Called at every look at the processes; shows progress.
        poll_s: Seconds between looks.

    Returns:
        The failed jobs.

    Raises:
        ValueError: A command cannot be started.
        KeyboardInterrupt, Interrupted: Ctrl-C or SIGTERM; the jobs were ended before.
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
                    time.sleep(poll_s)
            return failures
        finally:
            stop(list(running))


def describe(failure: Failure, shorten: Callable[[str], str] = str) -> str:
    """The end of a failed job's log, shortened, how the job ended, and where the log lies."""
    log = failure.job.log
    ended = f"{failure.job.name} {failure.ending}: {log}"
    if is_full(log):  # which keeps the log from saying so
        return f"{ended}: {os.strerror(errno.ENOSPC)}"
    return f"{tail(log, shorten=shorten)}\n{ended}"
