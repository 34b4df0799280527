"""Draw sclite's summary table, a box of nine columns below a title, and read its Sum/Avg line.

Widths count UTF-8 bytes, as sclite's do. Source: NIST SCTK 2.4.10, rpg.c, checked against the
program's output.
"""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from espnet_medusa.data.errors import InputError

PAGE_WIDTH = 80

_LINE_AFTER = (0, 2)  # columns followed by a line; the others are followed by a blank


class TableRow(NamedTuple):
    cells: tuple[str, ...]  # formatted values
    rule: str = ""  # line above the row: "-", "=" or "" for none
    left: bool = True  # whether the first cell is flush left; the others are centered


def byte_width(text: str) -> int:
    return len(text.encode("utf-8"))


def flush_left(text: str, width: int) -> str:
    return text + " " * (width - byte_width(text))


def center(text: str, width: int = PAGE_WIDTH) -> str:
    """Center; the larger part of an odd number of blanks is on the right."""
    blanks = max(0, width - byte_width(text))
    return " " * (blanks // 2) + text + " " * (blanks - blanks // 2)


def box_table(title: str, rows: Sequence[TableRow]) -> str:
    """Draw the table, centered on an 80 column page if it fits.

    All rows have the same number of cells. "//" in title or cells starts a new line, as in sclite.
    """
    text_widths = [
        max(byte_width(part) for row in rows for part in _parts(row.cells[column]))
        for column in range(len(rows[0].cells))
    ]
    title_width = max(byte_width(part) for part in _parts(title))
    # One character between columns, and one at either side of the box.
    table_width = sum(text_widths) + len(text_widths) - 1 + 2
    width = max(table_width, title_width + 2)
    # A long title widens all columns evenly.
    surplus, columns = width - table_width, range(len(text_widths) + 1)
    added = [int(surplus / len(text_widths) * column + 0.5) for column in columns]
    widths = [n + added[column + 1] - added[column] for column, n in enumerate(text_widths)]

    lines = ["," + "-" * (width - 2) + "."]
    lines += [f"|{_place(part, title_width, width - 2)}|" for part in _parts(title)]
    for number, row in enumerate(rows):
        if row.rule:
            # The first rule borders the title, which has no columns to cross.
            cross = "+" if row.rule == "-" and number > 0 else row.rule
            lines.append(_join([row.rule * w for w in widths], cross, row.rule))
        for first, *others in zip_longest(*map(_parts, row.cells), fillvalue=""):
            parts = [flush_left(first, text_widths[0]) if row.left else first, *others]
            lines.append(_join([*map(_place, parts, text_widths, widths)], "|", " "))
    lines.append("`" + "-" * (width - 2) + "'")
    indent = " " * max(0, (PAGE_WIDTH - width) // 2)
    return "".join(f"{indent}{line}\n" for line in lines)


def _parts(text: str) -> list[str]:
    parts = text.split("//")
    return parts[:-1] if len(parts) > 1 and not parts[-1] else parts


def _place(part: str, text_width: int, width: int) -> str:
    """Center a text in its column's text width, and the result in the column."""
    return center(center(part, text_width), width)


def _join(cells: list[str], at_line: str, elsewhere: str) -> str:
    """Join the cells of a line, with one character after every column."""
    joined = cells[0]
    for column, cell in enumerate(cells[1:]):
        joined += (at_line if column in _LINE_AFTER else elsewhere) + cell
    return f"|{joined}|"


class SumLine(NamedTuple):
    """The `Sum/Avg` line of an sclite report, as printed: two counts, then percentages."""

    sentences: str
    words: str
    correct: str
    substituted: str
    deleted: str
    inserted: str
    err: str
    sentence_err: str


def parse_sum(result: Path) -> SumLine:
    """Read the `Sum/Avg` line of an sclite report; raise InputError if it has none."""
    if not result.is_file():
        raise InputError(f"{result}: no such file; score first (stage 13)")
    for line in result.read_text(encoding="utf-8", errors="replace").split("\n"):
        if "Sum/Avg" in line:
            numbers = line.split("Sum/Avg", 1)[1].replace("|", " ").split()
            if len(numbers) == 8:
                return SumLine(*numbers)
    raise InputError(f"{result}: no `Sum/Avg` line with eight numbers; score again (stage 13)")
