"""The table of full-size checks: one row per check, written by its command."""

import os
import platform
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.tuning.report import machine_name

TITLES = ("check", "found", "right", "command", "machine")
HEADING = "# Full-size checks\n\nEach command of `tests/endurance` writes its own row.\n\n"


def this_machine() -> str:
    """Return the processor, the number of cores and the Python version."""
    processor = machine_name(torch.device("cpu"))
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}"


@dataclass(frozen=True)
class CheckRow:
    """The result of a check."""

    check: str  # name of the row: a few words
    found: str  # figures, in one sentence
    right: str  # ``yes``, or what is wrong
    command: str  # the command line, relative to ``tests/endurance``
    machine: str = field(default_factory=this_machine)  # where it ran


def finish_check(row: CheckRow, table: Path | None) -> int:
    """Print the result, write its row if there is a table, and return the exit status."""
    print(f"{row.found}\nright: {row.right}")
    if table is not None:
        write_row(table, row)
    return int(row.right != "yes")


def write_row(path: Path, row: CheckRow) -> None:
    """Replace the row of the same name; rows are sorted by name.

    Raises:
        InputError: The file contains another table.
    """
    rows = {old.check: old for old in read_rows(path)} | {row.check: row}
    cells = [astuple(rows[name]) for name in sorted(rows)]
    path.write_text(HEADING + markdown_table(TITLES, cells), encoding="utf-8")


def read_rows(path: Path) -> Sequence[CheckRow]:
    """Return the rows of a table; none if the file does not exist.

    Raises:
        InputError: The file contains another table.
    """
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").removeprefix(HEADING).splitlines()
    rows = [_cells(line) for line in lines]
    if len(rows) < 2 or tuple(rows[0]) != TITLES or any(len(row) != len(TITLES) for row in rows):
        raise InputError(f"{path}: not a table of checks; give another --table")
    return [CheckRow(*row) for row in rows[2:]]


def _cells(line: str) -> list[str]:
    bars = line.replace("\\|", "\0")[1:-1].split("|")
    return [cell.replace("\0", "|") for cell in bars]
