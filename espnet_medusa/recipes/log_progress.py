"""Progress lines of jobs and of training, read from their logs."""

import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from espnet_medusa.recipes import train_log

_RESUMED = re.compile(r"INFO: resumed: (\d+) of")


def clock(seconds: float) -> str:
    """Write a duration in seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class LiveLine:
    """A progress line, on standard error by default.

    It is rewritten in place on a terminal, and repeated after ``file_interval_s`` in a file.
    """

    def __init__(self, stream: TextIO | None = None, file_interval_s: float = 30.0) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.file_interval_s = file_interval_s
        self.in_place = self.stream.isatty()
        self._shown = ""
        self._last_time = time.monotonic()

    def update(self, text: str, last: bool = False) -> None:
        """Show `text`; with `last` it is never overwritten."""
        if self.in_place:
            width = shutil.get_terminal_size().columns
            end = "\n" if last else ""
            self.stream.write(f"\r\033[K{text[: width - 1]}{end}")
            self._shown = "" if last else text
        elif last or (
            text != self._shown and time.monotonic() - self._last_time >= self.file_interval_s
        ):
            self.stream.write(f"{text}\n")
            self._shown, self._last_time = text, time.monotonic()
        self.stream.flush()

    def print(self, text: str) -> None:
        """Print a permanent line above the progress line."""
        self.stream.write(f"\r\033[K{text}\n" if self.in_place else f"{text}\n")
        if self.in_place and self._shown:
            self.stream.write(self._shown[: shutil.get_terminal_size().columns - 1])
        self.stream.flush()


class LogFollower:
    """Reads the complete lines that were added to a log since the last call."""

    def __init__(self, path: Path | str, from_end: bool = False) -> None:
        self.path = Path(path)
        self._offset = self.path.stat().st_size if from_end and self.path.exists() else 0
        self.restarted = False  # whether the log became shorter: a new run has overwritten it

    def new_lines(self) -> list[str]:
        if not self.path.exists():
            return []
        self.restarted = self.path.stat().st_size < self._offset
        if self.restarted:
            self._offset = 0
        with self.path.open("rb") as log:
            log.seek(self._offset)
            data = log.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        return data[:end].decode("utf-8", errors="replace").split("\n")[:-1]


class Progress:
    """A progress line; in subclasses, ``read`` reads new log lines, ``text`` returns the line."""

    def __init__(self, line: LiveLine | None = None) -> None:
        self.line = LiveLine() if line is None else line
        self.started = time.monotonic()

    def show(self, where: str = "", last: bool = False) -> None:
        """Read the new log lines, and show the progress; ``where``: state of jobs on a cluster."""
        self.read()
        self.line.update(", ".join(filter(None, (self.text(), where))), last)


class JobsProgress(Progress):
    """Counts finished utterances of jobs: `best hypo` lines in their logs.

    ``total_keys`` is their number in all jobs; with 0, the number of jobs is shown instead.
    """

    def __init__(
        self, title: str, logs: Sequence[Path], total_keys: int = 0, line: LiveLine | None = None
    ) -> None:
        super().__init__(line)
        self.title, self.total_keys = title, total_keys
        self._jobs = [_JobCount(log) for log in logs]

    def read(self) -> None:
        for job in self._jobs if self.total_keys else ():
            job.read()

    def text(self) -> str:
        elapsed = time.monotonic() - self.started
        if not self.total_keys:
            return f"{self.title}: {len(self._jobs)} jobs, elapsed {clock(elapsed)}"
        count = sum(job.count for job in self._jobs)
        resumed = sum(job.resumed for job in self._jobs)
        shown = f"{self.title}: {count}/{self.total_keys} utterances"
        if resumed:
            shown += f" ({resumed} of an earlier run)"
        shown += f", elapsed {clock(elapsed)}"
        if resumed < count < self.total_keys:
            left = elapsed * (self.total_keys - count) / (count - resumed)
            shown += f", eta {clock(left)}"
        return shown


class _JobCount(LogFollower):
    """Utterances in a job's log, and how many of them an earlier run decoded."""

    count = resumed = 0

    def read(self) -> None:
        lines = self.new_lines()
        if self.restarted:
            self.count = self.resumed = 0
        self.count += sum("INFO: best hypo" in line for line in lines)
        self.resumed += sum(int(match[1]) for match in map(_RESUMED.search, lines) if match)


class TrainingProgress(Progress):
    """Shows epoch, step and eta of a running training, and prints each epoch's results."""

    def __init__(self, log: Path, line: LiveLine | None = None) -> None:
        super().__init__(line)
        self._follower = LogFollower(log, from_end=True)
        self._epoch = self._epochs = self._batch = self._batches = 0
        self._values: dict[str, float] = {}
        # This run's first epoch, and when it started: earlier epochs do not count for the speed.
        self._first: tuple[int, float] | None = None

    def read(self) -> None:
        for line in self._follower.new_lines():
            if results := self.feed(line):
                self.line.print(results)

    def feed(self, line: str) -> str | None:
        """Update the progress from a line of the log; return an epoch's results if it has them."""
        if match := train_log.EPOCH_STARTED.search(line):
            self._epoch, self._epochs, self._batch = int(match[1]), int(match[2]), 0
            self._first = self._first or (self._epoch, time.monotonic())
        elif match := train_log.BATCHES.search(line):
            self._batches = int(match[1])
        elif match := train_log.STEPS.search(line):
            self._batch, self._values = int(match[3]), train_log.parse_values(match[4])
        elif match := train_log.RESULTS.search(line):
            # With num_iters_per_epoch, the sampler's number of batches is not the epoch's.
            trained = train_log.parse_results(line)[1].get("train", {}).get("total_count", 0)
            self._batch = self._batches = round(trained / int(match[2])) or self._batches
            return match[1]
        return None

    def text(self) -> str:
        now = time.monotonic()
        if self._first is None:
            return f"training: starting, {clock(now - self.started)}"
        step = f"step {self._batch}" + (f"/{self._batches}" if self._batches else "")
        shown = [f"training: epoch {self._epoch}/{self._epochs}", step]
        values = self._values
        shown += [f"{key} {values[key]:.3f}" for key in ("loss", "acc") if key in values]
        shown.append(f"elapsed {clock(now - self.started)}")
        first_epoch, first_started = self._first
        part = min(self._batch / self._batches, 1.0) if self._batches else 0.0
        done = self._epoch - first_epoch + part
        if done > 0:
            left = (now - first_started) * (self._epochs - first_epoch + 1 - done) / done
            shown.append(f"eta {clock(left)}")
        return ", ".join(shown)
