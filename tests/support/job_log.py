"""The log file of a decoding job, in the format of ESPnet's commands."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dateutil import parser

FORMATTER = logging.Formatter("%(asctime)s (%(module)s:%(lineno)d) %(levelname)s: %(message)s")


@contextmanager
def log_to(path: Path, name: str | None = None) -> Iterator[logging.Logger]:
    """Write INFO messages of a logger, by default of all, to a file."""
    handler, logger = logging.FileHandler(path, encoding="utf-8"), logging.getLogger(name)
    handler.setFormatter(FORMATTER)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


def espnet_seconds(log: Path) -> tuple[int, int, float]:
    """Return utterances, samples and seconds of a log, as ESPnet's calculate_rtf.py reads them."""
    samples, starts, ends = [], [], []
    for line in log.read_text(encoding="utf-8").splitlines():
        if "INFO: speech length" in line:
            samples.append(int(line.strip().split("speech length: ")[1]))
            starts.append(parser.parse(line.split("(")[0]))
        elif "INFO: best hypo" in line:
            ends.append(parser.parse(line.split("(")[0]))
    pairs = zip(starts, ends, strict=True)
    return len(starts), sum(samples), sum((end - start).total_seconds() for start, end in pairs)
