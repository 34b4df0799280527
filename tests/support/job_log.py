"""The log file of a decoding job, in the format of ESPnet's commands."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
