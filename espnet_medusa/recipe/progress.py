"""Progress of jobs and of training, read from their logs."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.recipe.live import LiveLine, LogFollower, clock
from espnet_medusa.recipe.train_log import TrainingProgress

_RESUMED = re.compile(r"INFO: resumed: (\d+) of")


class JobsProgress:
    """Counts the utterances that jobs have finished: `best hypo` lines in their logs.

    Args:
        title: First word of the progress line.
        logs: One per job.
        total_keys: Utterances of all jobs together; 0 shows the elapsed time only.
        line: Where to show it.
    """

    def __init__(
        self, title: str, logs: Sequence[Path], total_keys: int = 0, line: LiveLine | None = None
    ) -> None:
        self.title = title
        self.total_keys = total_keys
        self.line = LiveLine() if line is None else line
        self._jobs = [_JobCount(LogFollower(log)) for log in logs]
        self._started = time.monotonic()

    def text(self) -> str:
        """The progress line as it is now."""
        elapsed = time.monotonic() - self._started
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

    def show(self, last: bool = False, where: str = "") -> None:
        """Read what is new in the logs and show it.

        Args:
            last: Show it for good.
            where: What is known of where the jobs are.
        """
        if self.total_keys:
            for job in self._jobs:
                job.read()
        self.line.update(", ".join(filter(None, (self.text(), where))), last)

    def finish(self) -> None:
        """Show the final state."""
        self.show(last=True)


@dataclass
class _JobCount:
    """Utterances that a job's log has, and those of them that an earlier run decoded."""

    log: LogFollower
    count: int = 0
    resumed: int = 0

    def read(self) -> None:
        lines = self.log.new_lines()
        if self.log.restarted:
            self.count = self.resumed = 0
        self.count += sum("INFO: best hypo" in line for line in lines)
        self.resumed += sum(int(match[1]) for match in map(_RESUMED.search, lines) if match)


class TrainingWatch:
    """Shows a training run's progress line and prints the results of each epoch."""

    def __init__(self, log: Path, line: LiveLine | None = None) -> None:
        self.line = LiveLine() if line is None else line
        self.progress = TrainingProgress()
        self._follower = LogFollower(log, from_end=True)

    def show(self, last: bool = False, where: str = "") -> None:
        """Read what is new in the log and show it.

        Args:
            last: Show it for good.
            where: What is known of where the training runs.
        """
        for text in self._follower.new_lines():
            lasting = self.progress.feed(text)
            if lasting:
                self.line.print(lasting)
        self.line.update(", ".join(filter(None, (self.progress.line(), where))), last)

    def finish(self) -> None:
        """Show the final state."""
        self.show(last=True)
