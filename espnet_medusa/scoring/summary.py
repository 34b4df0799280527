"""The `Sum/Avg` line of an sclite report."""

from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.errors import InputError


@dataclass(frozen=True)
class SumRow:
    """The `Sum/Avg` line of an sclite report, as printed: two counts, then percentages."""

    sentences: str
    words: str
    correct: str
    substituted: str
    deleted: str
    inserted: str
    err: str
    sentence_err: str


def parse_sum(result: Path) -> SumRow:
    """Read the `Sum/Avg` line of an sclite report.

    Raises:
        InputError: The file is missing or has no such line with eight numbers.
    """
    if not result.is_file():
        raise InputError(f"{result}: no such file; score first (stage 13)")
    for line in result.read_text(encoding="utf-8", errors="replace").split("\n"):
        if "Sum/Avg" in line:
            numbers = line.split("Sum/Avg", 1)[1].replace("|", " ").split()
            if len(numbers) == 8:
                return SumRow(*numbers)
    raise InputError(f"{result}: no `Sum/Avg` line with eight numbers; score again (stage 13)")
