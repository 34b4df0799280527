"""Reads what ESPnet's trainer writes into train.log."""

import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.recipe.live import clock

_EPOCH_STARTED = re.compile(r"INFO: (\d+)/(\d+)epoch started")
_BATCHES = re.compile(r"INFO: \[train\] mini-batch sizes summary: N-batch=(\d+)")
_STEPS = re.compile(r"INFO: (\d+)epoch:train:(\d+)-(\d+)batch: (.*)")
_RESULTS = re.compile(r"INFO: ((\d+)epoch results: (.*))")
_SECTION = re.compile(r"\[(\w+)\] (.*?)(?=, \[\w+\] |$)")
_VALUE = re.compile(r"(\w+)=([-+.\deE]+|nan|inf|-inf)(?=,|$)")

EpochStats = dict[str, dict[str, float]]


def parse_values(text: str) -> dict[str, float]:
    """Numbers of a `name=value, name=value` list; other values (times) are left out."""
    return {name: float(value) for name, value in _VALUE.findall(text)}


def parse_results(line: str) -> tuple[int, EpochStats] | None:
    """Parse an `epoch results` line.

    Returns:
        The epoch and its statistics by section (train, valid), or None for another line.
    """
    match = _RESULTS.search(line)
    if match is None:
        return None
    sections = {name: parse_values(text) for name, text in _SECTION.findall(match[3])}
    return int(match[2]), sections


def read_epochs(path: Path | str) -> dict[int, EpochStats]:
    """Statistics of all epochs of a train.log; a repeated epoch counts as it was last run.

    Raises:
        ValueError: The log is missing or holds no finished epoch.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file; train first (stage 11)")
    text = path.read_text(encoding="utf-8", errors="replace")
    epochs = dict(filter(None, map(parse_results, text.split("\n"))))
    if not epochs:
        raise ValueError(f"{path}: holds no finished epoch")
    return dict(sorted(epochs.items()))


def has_epochs(path: Path) -> bool:
    """Whether there is a train.log with a finished epoch."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as lines:
        return any(map(parse_results, lines))


@dataclass
class TrainingProgress:
    """Where a training run stands, fed with its log's lines."""

    started: float = field(default_factory=time.monotonic)
    first_epoch_started: float | None = None
    epoch: int = 0
    epochs: int = 0
    batch: int = 0
    batches: int = 0
    values: dict[str, float] = field(default_factory=dict)
    first_done: float | None = None

    def feed(self, line: str) -> str | None:
        """Take a line of the log; returns a line worth printing for good, if it is one."""
        if match := _EPOCH_STARTED.search(line):
            if self.first_epoch_started is None:
                self.first_epoch_started = time.monotonic()
            self.epoch, self.epochs, self.batch = int(match[1]), int(match[2]), 0
        elif match := _BATCHES.search(line):
            self.batches = int(match[1])
        elif match := _STEPS.search(line):
            self.batch, self.values = int(match[3]), parse_values(match[4])
        elif match := _RESULTS.search(line):
            # With num_iters_per_epoch an epoch has another length than the sampler.
            trained = parse_results(line)[1].get("train", {}).get("total_count", 0)
            self.batch = self.batches = round(trained / int(match[2])) or self.batches
            return match[1]
        return None

    def _done(self) -> float:
        """Epochs done, a fraction included."""
        part = self.batch / self.batches if self.batches else 0.0
        return self.epoch - 1 + min(part, 1.0)

    def line(self) -> str:
        """The progress line: epoch, step, loss, accuracy, elapsed and remaining time."""
        elapsed = time.monotonic() - self.started
        if not self.epoch:
            return f"training: starting, {clock(elapsed)}"
        step = f"step {self.batch}" + (f"/{self.batches}" if self.batches else "")
        shown = [f"training: epoch {self.epoch}/{self.epochs}", step]
        shown += [f"{key} {self.values[key]:.3f}" for key in ("loss", "acc") if key in self.values]
        if self.first_done is None:
            # A resumed run does not start at 0: only what this run did tells its pace.
            self.first_done = self.epoch - 1
        done = self._done()
        shown.append(f"elapsed {clock(elapsed)}")
        if done > self.first_done:
            # What the process took to start is no part of its pace.
            trained = time.monotonic() - self.first_epoch_started
            left = trained * (self.epochs - done) / (done - self.first_done)
            shown.append(f"eta {clock(left)}")
        return ", ".join(shown)
