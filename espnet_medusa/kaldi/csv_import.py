"""CSV files with a header, read so that a bad row loses no other: the columns of aiola's tools.

``audio`` (a path, relative to the CSV file), ``sentence``; optionally ``language``,
``regulation-start`` and ``regulation-factor``; any others are kept.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from espnet_medusa.audio.source import AudioError, is_pipe, open_source, source_paths
from espnet_medusa.errors import InputError
from espnet_medusa.files.output_folder import fingerprint, staged_output
from espnet_medusa.kaldi.data_dir import RESERVED_WORDS, make_spk2utt
from espnet_medusa.kaldi.table import DataError, DataProblem, write_table

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


REGULATION = "utt2regulation"
TABLES = ("wav.scp", "text", "utt2spk")


class _BadValueError(InputError):
    """A value that cannot be used; its arguments are message and remedy."""

    def __str__(self) -> str:
        return "; ".join(self.args)


@dataclass
class CsvImport:
    """What became of a CSV file.

    Attributes:
        tables: File of the data directory to its lines.
        bad: One problem for each row that is left out.
    """

    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    bad: list[DataProblem] = field(default_factory=list)

    @property
    def regulations(self) -> set[str]:
        """Different pairs of start and factor of the length penalty."""
        return set(self.tables.get(REGULATION, {}).values())


def csv_to_data_dir(path: Path, output_dir: Path, language: str | None = None) -> CsvImport:
    """Write wav.scp, text, utt2spk, spk2utt, and utt2lang and utt2regulation where rows say so.

    Every row is its own speaker. A row that cannot be used is left out and named.

    Args:
        path: The CSV file; its audio paths are relative to its folder.
        output_dir: Written as a whole; one that this function made before is replaced.
        language: Code or name for rows without one; None: they are not in utt2lang.

    Raises:
        InputError: The header is not usable.
        DataError: No row is usable; nothing is written then.
    """
    table = read_csv(path)
    done = CsvImport(tables={name: {} for name in TABLES})
    fallback = None if language is None else whisper_language(language)
    for row in table.rows:
        if row.problem is not None:
            done.bad.append(row.problem)
            continue
        try:
            entries = _entries(table, row, fallback)
        except _BadValueError as error:
            done.bad.append(table.problem(row, *error.args))
            continue
        for name, value in entries.items():
            done.tables.setdefault(name, {})[row.id] = value
    if not done.tables["wav.scp"]:
        nothing = DataProblem(str(path), "", "holds no usable row", "mend the rows")
        raise DataError([*done.bad, nothing])
    done.tables["spk2utt"] = make_spk2utt(done.tables["utt2spk"])
    audio = [file for entry in done.tables["wav.scp"].values() for file in source_paths(entry)]
    with staged_output(output_dir, fingerprint([path], audio, {"language": language})) as folder:
        for name, entries in done.tables.items():
            write_table(folder / name, entries)
    return done


def _entries(table: CsvTable, row: CsvRow, language: str | None) -> dict[str, str]:
    """A row's value in each file of the data directory."""
    entries = {
        "wav.scp": _audio(row.fields[AUDIO], table.path.parent),
        "text": _sentence(row.fields[SENTENCE]),
        "utt2spk": row.id,
    }
    said = row.fields.get(LANGUAGE, "").strip()
    if said or language is not None:
        entries["utt2lang"] = whisper_language(said) if said else language
    start, factor = (row.fields.get(name, "").strip() for name in (START, FACTOR))
    if start or factor:
        entries[REGULATION] = f"{_number(START, start, int, 0)} {_number(FACTOR, factor, float, 1)}"
    return entries


def _audio(value: str, folder: Path) -> str:
    value = value.strip()
    if not value:
        raise _BadValueError(f"{AUDIO}: is empty", "add a path, relative to the CSV file")
    if is_pipe(value) or "\n" in value or "\r" in value:
        raise _BadValueError(f"{AUDIO}: {value}: is no path", "give an audio file")
    if not value.startswith("~"):
        value = str(folder.absolute() / value)
    try:
        open_source(value)
    except AudioError as error:
        remedy = error.remedy.replace("wav.scp", f"column {AUDIO}")
        raise _BadValueError(f"{AUDIO}: {error.message}", remedy) from error
    return value


def _sentence(value: str) -> str:
    words = value.split()
    if not words:
        raise _BadValueError(f"{SENTENCE}: is empty", "write what is said, or remove the row")
    reserved = sorted(RESERVED_WORDS.intersection(words))
    if reserved:
        message = f"{SENTENCE}: holds reserved symbols: {' '.join(reserved)}"
        raise _BadValueError(message, "remove them")
    return " ".join(words)


@cache
def _language_codes() -> dict[str, str]:
    from whisper.tokenizer import LANGUAGES, TO_LANGUAGE_CODE  # Slow to import.

    return {code: code for code in LANGUAGES} | TO_LANGUAGE_CODE


def whisper_language(value: str) -> str:
    """Whisper's code of a language, from its code or English name.

    Raises:
        InputError: Whisper does not know it.
    """
    code = _language_codes().get(value.strip().lower())
    if code is None:
        raise _BadValueError(
            f"{LANGUAGE}: {value!r} is not one of Whisper's", "give a code such as en, or a name"
        )
    return code


def _number(name: str, value: str, kind: Callable, least: float) -> int | float:
    try:
        number = kind(value)
    except ValueError:
        number = -math.inf
    if not least <= number < math.inf:
        whole = "whole number" if kind is int else "number"
        remedy = f"give a {whole} of {least} or more, in both {START} and {FACTOR} or in neither"
        raise _BadValueError(f"{name}: {value!r}", remedy)
    return number
