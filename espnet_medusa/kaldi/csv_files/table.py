"""CSV files with a header, read so that a bad row loses no other: the columns of aiola's tools.

``audio`` (a path, relative to the CSV file), ``sentence``; optionally ``language``,
``regulation-start`` and ``regulation-factor``; any others are kept.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.problem import DataProblem

AUDIO, SENTENCE, LANGUAGE = "audio", "sentence", "language"
START, FACTOR = "regulation-start", "regulation-factor"
REQUIRED = (AUDIO, SENTENCE)
STEM_CHARACTERS = 40


@dataclass(frozen=True)
class CsvRow:
    """One record.

    Attributes:
        line: Where it starts in the file, from 1.
        id: Utterance id: number of the row and stem of the audio file.
        fields: Column to value; empty where the row could not be told apart.
        problem: Why the row cannot be used, or None.
    """

    line: int
    id: str
    fields: Mapping[str, str]
    problem: DataProblem | None = None


@dataclass(frozen=True)
class CsvTable:
    """A CSV file.

    Attributes:
        path: The file.
        columns: Of its header, in order.
        rows: All of its records, in order, bad ones among them.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[CsvRow, ...]

    def problem(self, row: CsvRow, message: str, remedy: str) -> DataProblem:
        """Something wrong with a row, named by its line."""
        return DataProblem(str(self.path), f"line {row.line}", message, remedy)


def read_csv(path: Path) -> CsvTable:
    """Read a CSV file: UTF-8, with a byte order mark or without, quotes as RFC 4180 has them.

    Raises:
        InputError: The file is not there or empty, or its header lacks a column or names one twice.
    """
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            header, *records = [*_records(stream)] or [(1, [], "is empty")]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); mend the path") from error
    columns = _columns(path, *header)
    width = max(6, len(str(len(records))))
    rows = (
        _row(path, columns, f"{number:0{width}}", *record)
        for number, record in enumerate(records, start=1)
    )
    return CsvTable(Path(path), columns, tuple(rows))


def _columns(path: Path, line: int, header: list[str], reason: str | None) -> tuple[str, ...]:
    columns = tuple(" ".join(_readable(name).split()) for name in header)
    if reason is None and "".join(header) != _readable("".join(header)):
        reason = "is not UTF-8: convert the file with iconv"
    missing = [name for name in REQUIRED if name not in columns]
    if reason or missing:
        found = f"; the columns found: {', '.join(columns)}" if columns else ""
        raise InputError(
            f"{path}: line {line}: {reason or 'no column ' + ' and '.join(missing)}{found}; "
            f"needed: a header with {', '.join(REQUIRED)}, separated by commas"
        )
    if len(set(columns)) != len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise InputError(f"{path}: line {line}: column {twice!r} is there twice; rename one")
    return columns


def _readable(value: str) -> str:
    """Text whose bytes were not UTF-8, with marks in their place."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _records(stream) -> Iterator[tuple[int, list[str], str | None]]:
    """Line, fields and the parser's complaint of every record that is not blank."""
    reader = csv.reader(stream, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # The parser goes on with the next line.
            yield line, [], f"is no CSV ({error})"
            continue
        if fields:
            yield line, fields, None


def _row(
    path: Path,
    columns: tuple[str, ...],
    number: str,
    line: int,
    values: list[str],
    reason: str | None,
) -> CsvRow:
    remedy = "put quotes around a value with commas, and write quotes in it twice"
    if reason is None and len(values) != len(columns):
        reason = f"has {len(values)} values for {len(columns)} columns"
    # Nothing is lost: values without a column stay with the last.
    last = len(columns) - 1
    values = [*values[:last], ",".join(values[last:])] if len(values) > len(columns) else values
    fields = dict(zip(columns, values, strict=False))
    for name, value in fields.items():
        readable = _readable(value)
        if reason is None and readable != value:
            reason, remedy = f"{name}: is not UTF-8: {readable}", "convert the file with iconv"
        fields[name] = readable
    problem = None
    if reason is not None:
        problem = DataProblem(str(path), f"line {line}", reason, remedy)
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(fields.get(AUDIO, "").strip()).stem)
    return CsvRow(line, f"{number}-{stem[:STEM_CHARACTERS] or 'audio'}", fields, problem)
