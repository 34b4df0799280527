"""Reads the train.log of ESPnet's trainer."""

import re
from pathlib import Path

EPOCH_STARTED = re.compile(r"INFO: (\d+)/(\d+)epoch started")
BATCHES = re.compile(r"INFO: \[train\] mini-batch sizes summary: N-batch=(\d+)")
STEPS = re.compile(r"INFO: (\d+)epoch:train:(\d+)-(\d+)batch: (.*)")
RESULTS = re.compile(r"INFO: ((\d+)epoch results: (.*))")
_SECTION = re.compile(r"\[(\w+)\] (.*?)(?=, \[\w+\] |$)")
_VALUE = re.compile(r"(\w+)=([-+.\deE]+|nan|inf|-inf)(?=,|$)")

EpochStats = dict[str, dict[str, float]]


def parse_values(text: str) -> dict[str, float]:
    """Return the plain numbers of a `name=value, name=value` list, by name."""
    return {name: float(value) for name, value in _VALUE.findall(text)}


def parse_results(line: str) -> tuple[int, EpochStats] | None:
    """Return epoch and statistics by section (train, valid) of an `epoch results` line, or None."""
    match = RESULTS.search(line)
    if match is None:
        return None
    return int(match[2]), {name: parse_values(text) for name, text in _SECTION.findall(match[3])}


def read_epochs(path: Path) -> dict[int, EpochStats]:
    """Return the last statistics of each epoch in a log; raise ValueError if there are none."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file; train first (stage 11)")
    text = path.read_text(encoding="utf-8", errors="replace")
    epochs = dict(filter(None, map(parse_results, text.split("\n"))))
    if not epochs:
        raise ValueError(f"{path}: has no finished epoch")
    return dict(sorted(epochs.items()))


def has_epochs(path: Path) -> bool:
    """Return whether there is a train.log with a finished epoch."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as lines:
        return any(map(parse_results, lines))
