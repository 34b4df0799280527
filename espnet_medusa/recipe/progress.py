"""Progress of jobs and of training, read from their logs."""

import time
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.recipe.live import LiveLine, LogFollower, clock
from espnet_medusa.recipe.train_log import TrainingProgress


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
        self.count = 0
        self.line = LiveLine() if line is None else line
        self._followers = [LogFollower(log) for log in logs]
        self._started = time.monotonic()

    def text(self) -> str:
        """The progress line as it is now."""
        elapsed = time.monotonic() - self._started
        if not self.total_keys:
            return f"{self.title}: {len(self._followers)} jobs, elapsed {clock(elapsed)}"
        shown = f"{self.title}: {self.count}/{self.total_keys} utterances, elapsed {clock(elapsed)}"
        if 0 < self.count < self.total_keys:
            shown += f", eta {clock(elapsed * (self.total_keys - self.count) / self.count)}"
        return shown

    def show(self, last: bool = False) -> None:
        """Read what is new in the logs and show it."""
        if self.total_keys:
            for follower in self._followers:
                self.count += sum("INFO: best hypo" in line for line in follower.new_lines())
        self.line.update(self.text(), last)

    def finish(self) -> None:
        """Show the final state."""
        self.show(last=True)


class TrainingWatch:
    """Shows a training run's progress line and prints the results of each epoch."""

    def __init__(self, log: Path, line: LiveLine | None = None) -> None:
        self.line = LiveLine() if line is None else line
        self.progress = TrainingProgress()
        self._follower = LogFollower(log, from_end=True)

    def show(self, last: bool = False) -> None:
        """Read what is new in the log and show it."""
        for text in self._follower.new_lines():
            lasting = self.progress.feed(text)
            if lasting:
                self.line.print(lasting)
        self.line.update(self.progress.line(), last)

    def finish(self) -> None:
        """Show the final state."""
        self.show(last=True)
