"""How far a decoding job is: a bar on a terminal, lines in a log."""

import logging
import sys
import time

from tqdm import tqdm

logger = logging.getLogger(__name__)

LINE_EVERY_S = 60.0


class Progress:
    """Counts utterances, or what else there is to be done.

    A log gets lines of its own, at most one a minute: ESPnet's scripts take the time of day from
    the beginning of each line that they look for, where a bar must not stand.

    Args:
        total: Of the job.
        done: Of it, in an earlier run.
        what: Is being done.
        unit: What is counted.
    """

    def __init__(
        self, total: float, done: float = 0, what: str = "decoding", unit: str = "utterances"
    ):
        self.digits = ".1f" if isinstance(total, float) else "d"
        numbers = f"{{n:{self.digits}}}/{{total:{self.digits}}} {{unit}}"
        shape = "{desc}: {percentage:3.0f}%|{bar}| " + numbers + " [{elapsed}<{remaining}]"
        self.bar = tqdm(
            total=total,
            initial=done,
            desc=what,
            unit=unit,
            mininterval=2.0,
            disable=None,
            bar_format=shape,
        )
        self.what, self.unit = what, unit
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

    def update(self, count: float = 1) -> None:
        """Count so much more."""
        self.bar.update(count)
        self.done += count
        now = time.monotonic()
        if self.bar.disable and count and now - self.last_line >= LINE_EVERY_S:
            self.last_line = now
            rate = (self.done - self.first) / (now - self.started)
            rest = tqdm.format_interval((self.total - self.done) / rate)
            numbers = f"{self.done:{self.digits}} of {self.total:{self.digits}}"
            logger.info(f"{self.what}: {numbers} {self.unit}, {rest} left")
