"""Splits lists of utterances over jobs."""

from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.kaldi.split import split_scp
from espnet_medusa.kaldi.table import read_table, write_table


def split_keys(inputs: Sequence[Path | str], outputs: Sequence[str], jobs: int) -> int:
    """Split each input over the same number of jobs, in runs of neighbouring lines.

    Args:
        inputs: Kaldi tables: an id and more in each line.
        outputs: For each input, the name of its parts, with `JOB` for the job's number.
        jobs: Most jobs wanted.

    Returns:
        Number of jobs: `jobs`, or fewer when an input has fewer utterances.

    Raises:
        ValueError: An input is missing, empty or malformed, or a name lacks `JOB`.
    """
    tables = []
    for path, pattern in zip(inputs, outputs, strict=True):
        if "JOB" not in pattern:
            raise ValueError(f"{pattern}: the name of the parts must contain JOB")
        tables.append(read_table(path, require_value=False))
    count = min(jobs, *(len(table) for table in tables))
    for table, pattern in zip(tables, outputs, strict=True):
        for job, keys in enumerate(split_scp(list(table), count), 1):
            part = {key: table[key] for key in keys}
            write_table(pattern.replace("JOB", str(job)), part)
    return count
