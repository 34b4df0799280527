"""Splits lists of utterances over jobs."""

from collections.abc import Sequence
from pathlib import Path


def split_keys(inputs: Sequence[Path | str], outputs: Sequence[str], jobs: int) -> int:
    """Split each input over the same number of jobs, in runs of neighbouring lines.

    Args:
        inputs: Files with one utterance a line.
        outputs: For each input, the name of its parts, with `JOB` for the job's number.
        jobs: Most jobs wanted.

    Returns:
        Number of jobs: `jobs`, or fewer when an input has fewer utterances.

    Raises:
        ValueError: An input is missing or empty, or a name lacks `JOB`.
    """
    contents = []
    for path, pattern in zip(inputs, outputs, strict=True):
        if "JOB" not in pattern:
            raise ValueError(f"{pattern}: the name of the parts must contain JOB")
        if not Path(path).is_file():
            raise ValueError(f"{path}: no such file; run the earlier stages first")
        lines = [line for line in Path(path).read_text(encoding="utf-8").split("\n") if line]
        if not lines:
            raise ValueError(f"{path}: holds no utterances")
        contents.append(lines)
    count = min(jobs, *(len(lines) for lines in contents))
    if count < 1:
        raise ValueError(f"{jobs} jobs: at least one is needed")
    for lines, pattern in zip(contents, outputs, strict=True):
        for job in range(count):
            first, last = job * len(lines) // count, (job + 1) * len(lines) // count
            part = Path(pattern.replace("JOB", str(job + 1)))
            part.parent.mkdir(parents=True, exist_ok=True)
            part.write_text("".join(f"{line}\n" for line in lines[first:last]), encoding="utf-8")
    return count
