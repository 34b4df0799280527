"""Progress of a job: a bar on a terminal, lines in a log."""

import logging
import sys
import time
from contextlib import AbstractContextManager

from tqdm import tqdm

logger = logging.getLogger(__name__)

LINE_EVERY_S = 60.0


class Progress(AbstractContextManager):
    """Counts utterances, or other units of work.

    A log gets at most one line per minute and no bar: ESPnet's scripts read the time at the
    beginning of a log line. ``done`` is the amount that an earlier run completed.
    """

    def __init__(
        self, total: float, done: float = 0, what: str = "decoding", unit: str = "utterances"
    ):
        self.digits = ".1f" if isinstance(total, float) else "d"
        numbers = f"{{n:{self.digits}}}/{{total:{self.digits}}} {{unit}}"
        shape = "{desc}: {percentage:3.0f}%|{bar}| " + numbers + " [{elapsed}<{remaining}]"
        names = {"desc": what, "unit": unit, "bar_format": shape}
        self.bar = tqdm(total=total, initial=done, mininterval=2.0, disable=None, **names)
        self.what, self.unit = what, unit
        self.total, self.done, self.first = total, done, done
        self.started = self.last_line = time.monotonic()

    def __exit__(self, *_) -> None:
        self.bar.close()

    @staticmethod
    def print(line: str) -> None:
        """Print a line above the bar; ``?`` replaces characters that stdout cannot encode."""
        encoding = sys.stdout.encoding or "utf-8"
        tqdm.write(line.encode(encoding, "replace").decode(encoding), file=sys.stdout)
        sys.stdout.flush()

    def update(self, count: float = 1) -> None:
        self.done += count
        # Headers may declare less audio than there is; above its total, tqdm has no total.
        self.total = self.bar.total = max(self.total, self.done)
        self.bar.update(count)
        now = time.monotonic()
        if self.bar.disable and count and now - self.last_line >= LINE_EVERY_S:
            self.last_line = now
            rate = (self.done - self.first) / (now - self.started)
            rest = tqdm.format_interval((self.total - self.done) / rate)
            numbers = f"{self.done:{self.digits}} of {self.total:{self.digits}}"
            logger.info(f"{self.what}: {numbers} {self.unit}, {rest} left")
