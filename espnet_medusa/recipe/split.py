"""Splits lists of utterances over jobs."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from espnet_medusa.kaldi.table import read_table, split_scp, write_table


def split_keys(
    inputs: Sequence[Path | str],
    outputs: Sequence[str],
    jobs: int,
    work_dir: Path | str | None = None,
    resume: bool = True,
) -> int:
    """Split each input over the same number of jobs, in runs of neighbouring lines.

    Args:
        inputs: Kaldi tables: an id and more in each line.
        outputs: For each input, the name of its parts, with `JOB` for the job's number.
        jobs: Most jobs wanted.
        work_dir: Folder of what the jobs write; emptied when the split is not that of last time,
            kept otherwise, so that interrupted jobs resume.
        resume: False: it is emptied anyhow.

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
    parts = {
        Path(pattern.replace("JOB", str(job))): {key: table[key] for key in keys}
        for table, pattern in zip(tables, outputs, strict=True)
        for job, keys in enumerate(split_scp(list(table), count), 1)
    }
    if work_dir is not None and not (resume and _same_parts(parts, outputs)):
        shutil.rmtree(work_dir, ignore_errors=True)
    for path, part in parts.items():
        write_table(path, part)
    return count


def _same_parts(parts: Mapping[Path, Mapping[str, str]], outputs: Sequence[str]) -> bool:
    there = {path for name in outputs for path in Path(name).parent.glob(_glob(Path(name).name))}
    return there == set(parts) and all(
        read_table(path, require_value=False) == part for path, part in parts.items()
    )


def _glob(name: str) -> str:
    return name.replace("JOB", "[0-9]*")
