"""The table of full-size checks: a row each, which its command writes anew."""

import os
import platform
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.tuning.report import machine_name

TITLES = ("check", "found", "right", "command", "machine")
HEADING = "# Full-size checks\n\nEach command of `tests/endurance` writes its own row.\n\n"


@dataclass(frozen=True)
class CheckRow:
    """What a check found.

    Attributes:
        check: What is checked, a few words: a row's name.
        found: Figures, in a sentence.
        right: ``yes``, or what is wrong.
        command: That was run, below ``tests/endurance``.
        machine: That it ran on.
    """

    check: str
    found: str
    right: str
    command: str
    machine: str


def here() -> str:
    """This machine: processor, cores, Python."""
    processor = machine_name(torch.device("cpu"))
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}"


def write_row(path: Path, row: CheckRow) -> None:
    """Put a row into the table, in place of the one of its name, in the order of names.

    Raises:
        InputError: The file is there and holds another table.
    """
    rows = {one.check: one for one in read_rows(path)} | {row.check: row}
    cells = [astuple(rows[name]) for name in sorted(rows)]
    path.write_text(HEADING + markdown_table(TITLES, cells), encoding="utf-8")


def read_rows(path: Path) -> Sequence[CheckRow]:
    """The rows of a table; none where there is no file.

    Raises:
        InputError: It holds another table.
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
