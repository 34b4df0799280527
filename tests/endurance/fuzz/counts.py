"""A reader's folder: inputs, defects, and counts of inputs by outcome."""

from pathlib import Path

import numpy as np

from fuzz.judge import READ, REFUSED

CORPUS = "corpus"  # inputs that reached new code
DEFECTS = "defects"  # the smallest input of each defect, and its traceback
ENDS = "ends"  # inputs that ended the process
COUNTS = "counts"
EXECUTIONS, OUTCOMES = 0, {REFUSED: 1, READ: 2}  # places of counts


def read_counts(folder: Path) -> tuple[int, ...]:
    """Return the numbers of all, refused and read inputs; zeros before the first run."""
    path = folder / COUNTS
    return tuple(np.fromfile(path, np.int64).tolist()) if path.is_file() else (0, 0, 0)


def mapped_counts(folder: Path) -> np.ndarray:
    """Return the counts in a memory-mapped file, which survive a killed process."""
    np.array(read_counts(folder)).tofile(folder / COUNTS)
    return np.memmap(folder / COUNTS, np.int64, "r+")
