"""How far a decoding job is: a bar on a terminal, lines in a log."""

import logging
import sys
import time

from tqdm import tqdm

logger = logging.getLogger(__name__)

LINE_EVERY_S = 60.0


class Progress:
    """Counts utterances.

    A log gets lines of its own, at most one a minute: ESPnet's scripts take the time of day from
    the beginning of each line that they look for, where a bar must not stand.

    Args:
        total: Utterances of the job.
        done: Of them, those of an earlier run.
        what: Is being done to them, or made of them.
    """

    def __init__(self, total: int, done: int = 0, what: str = "decoding"):
        self.bar = tqdm(
            total=total, initial=done, desc=what, unit="utt", mininterval=2.0, disable=None
        )
        self.what = what
        self.total, self.done, self.first = total, done, done
        self.started = self.last_line = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        self.bar.close()

    @staticmethod
    def say(line: str) -> None:
        """Write a line to stdout, above the bar where there is one."""
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()

    def update(self) -> None:
        """Count one more."""
        self.bar.update()
        self.done += 1
        now = time.monotonic()
        if self.bar.disable and now - self.last_line >= LINE_EVERY_S:
            self.last_line = now
            rate = (self.done - self.first) / (now - self.started)
            rest = tqdm.format_interval((self.total - self.done) / rate)
            logger.info(f"{self.what}: {self.done} of {self.total} utterances, {rest} left")
