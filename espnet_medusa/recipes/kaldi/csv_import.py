"""CSV files with the columns of aiola's tools, and Kaldi data directories made from them.

Required: ``audio`` (a path, relative to the CSV file) and ``sentence``. Optional: ``language``, and
``regulation-start`` and ``regulation-factor``, the length penalty of an utterance. Other columns
are allowed.
"""

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.data.audio.source import AudioError, is_pipe, open_source, source_paths
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.output_folder import check_output_dir, digest_of_inputs, staged_output
from espnet_medusa.data.kaldi.data_dir import find_reserved_words, make_spk2utt
from espnet_medusa.data.kaldi.table import DataError, DataProblem, join_words, write_table
from espnet_medusa.networks.whisper.tokens import language_code

AUDIO, SENTENCE, LANGUAGE = "audio", "sentence", "language"
START, FACTOR = "regulation-start", "regulation-factor"
REQUIRED = (AUDIO, SENTENCE)
REGULATION = "utt2regulation"  # table of start and factor of the length penalty
TABLES = ("wav.scp", "text", "utt2spk")
STEM_CHARACTERS = 40
Record = tuple[int, list[str], str | None]  # first line, fields, and the parser's error


@dataclass(frozen=True)
class CsvRow:
    line: int  # first line of the record in the file, from 1
    id: str  # utterance id: number of the row and stem of the audio file
    fields: Mapping[str, str]  # column to value; empty if the record cannot be parsed
    problem: DataProblem | None = None  # why the row cannot be used, or None


def read_csv(path: Path) -> tuple[tuple[str, ...], list[CsvRow]]:
    """Read a CSV file: UTF-8, with or without a byte order mark, quotes as in RFC 4180.

    Return the columns of the header, and all records in order, including bad ones. Raises
    InputError if the file is missing or empty, or its header lacks or repeats a column.
    """
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            header, *records = [*_records(stream)] or [(1, [], "is empty")]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); correct the path") from error
    columns = _columns(path, *header)
    width = max(6, len(str(len(records))))
    numbered = enumerate(records, start=1)
    return columns, [_row(path, columns, f"{n:0{width}}", record) for n, record in numbered]


def _columns(path: Path, line: int, header: list[str], reason: str | None) -> tuple[str, ...]:
    columns = tuple(" ".join(_readable(name).split()) for name in header)
    if reason is None and "".join(header) != _readable("".join(header)):
        reason = "is not UTF-8: convert the file with iconv"
    missing = [name for name in REQUIRED if name not in columns]
    if reason or missing:
        listed = f"; the columns found: {', '.join(columns)}" if columns else ""
        raise InputError(
            f"{path}: line {line}: {reason or 'no column ' + ' and '.join(missing)}{listed}; "
            f"needed: a header with {', '.join(REQUIRED)}, separated by commas"
        )
    if len(set(columns)) != len(columns):
        repeated = next(name for name in columns if columns.count(name) > 1)
        raise InputError(f"{path}: line {line}: column {repeated!r} occurs twice; rename one")
    return columns


def _readable(value: str) -> str:
    """Replace bytes that were not UTF-8 by the replacement character."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _records(stream) -> Iterator[Record]:
    """Yield every record that is not blank."""
    reader = csv.reader(stream, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # The parser continues with the next line.
            yield line, [], f"is no CSV ({error})"
            continue
        if fields:
            yield line, fields, None


def _row(path: Path, columns: tuple[str, ...], number: str, record: Record) -> CsvRow:
    line, values, reason = record
    remedy = "put quotes around a value with commas, and write quotes in it twice"
    if reason is None and len(values) != len(columns):
        reason = f"has {len(values)} values for {len(columns)} columns"
    # Values without a column are joined to the last column, so that no text is lost.
    last = len(columns) - 1
    values = [*values[:last], ",".join(values[last:])] if len(values) > len(columns) else values
    fields = dict(zip(columns, values, strict=False))
    for name, value in fields.items():
        readable = _readable(value)
        if reason is None and readable != value:
            reason, remedy = f"{name}: is not UTF-8: {readable}", "convert the file with iconv"
        fields[name] = readable
    problem = reason and DataProblem(str(path), f"line {line}", reason, remedy)
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(fields.get(AUDIO, "").strip()).stem)
    return CsvRow(line, f"{number}-{stem[:STEM_CHARACTERS] or 'audio'}", fields, problem)


class _BadValueError(InputError):
    """A value that cannot be used: ``_BadValueError(message, remedy)``."""

    def __str__(self) -> str:
        return "; ".join(self.args)


def csv_to_data_dir(
    path: Path, output_dir: Path, language: str | None = None, allow_empty_text: bool = False
) -> tuple[dict[str, dict[str, str]], list[DataProblem]]:
    """Write wav.scp, text, utt2spk, spk2utt, and utt2lang and utt2regulation if rows have them.

    Every row becomes its own speaker. Rows without a language get ``language``, a code or name;
    None: they are not in utt2lang. ``allow_empty_text``: whether a sentence may be empty.

    Return the tables, and a problem for each bad row, which is left out. Raises InputError for an
    unusable header, or if ``output_dir`` contains the CSV file or its audio, and DataError, without
    an output, if no row is usable.
    """
    _, rows = read_csv(path)
    tables: dict[str, dict[str, str]] = {name: {} for name in TABLES}
    bad: list[DataProblem] = []
    default = None if language is None else whisper_language(language)
    for row in rows:
        if row.problem is not None:
            bad.append(row.problem)
            continue
        try:
            for name, value in _entries(row, path.parent, default, allow_empty_text).items():
                tables.setdefault(name, {})[row.id] = value
        except _BadValueError as error:
            bad.append(DataProblem(str(path), f"line {row.line}", *error.args))
    if not tables["wav.scp"]:
        nothing = DataProblem(str(path), "", "has no usable row", "correct the rows")
        raise DataError([*bad, nothing])
    tables["spk2utt"] = make_spk2utt(tables["utt2spk"])
    audio = [file for entry in tables["wav.scp"].values() for file in source_paths(entry)]
    check_output_dir(output_dir, [path, *audio])
    with staged_output(
        output_dir, digest_of_inputs([path], audio, {"language": language})
    ) as folder:
        for name, entries in tables.items():
            write_table(folder / name, entries)
    return tables, bad


def _entries(
    row: CsvRow, folder: Path, default_language: str | None, allow_empty_text: bool
) -> dict[str, str]:
    """Return a row's value in each file of the data directory."""
    entries = {
        "wav.scp": _audio_path(row.fields[AUDIO].strip(), folder),
        "text": _sentence(row.fields[SENTENCE], allow_empty_text),
        "utt2spk": row.id,
    }
    language = row.fields.get(LANGUAGE, "").strip()
    if language or default_language is not None:
        entries["utt2lang"] = whisper_language(language) if language else default_language
    start, factor = (row.fields.get(name, "").strip() for name in (START, FACTOR))
    if start or factor:
        entries[REGULATION] = f"{_number(START, start, int, 0)} {_number(FACTOR, factor, float, 1)}"
    return entries


def _audio_path(value: str, folder: Path) -> str:
    if not value:
        raise _BadValueError(f"{AUDIO}: is empty", "add a path, relative to the CSV file")
    if is_pipe(value) or "\n" in value or "\r" in value:
        raise _BadValueError(f"{AUDIO}: {value}: is no path", "give an audio file")
    if not value.startswith("~"):
        value = str(folder.absolute() / value)
    try:
        open_source(value)
    except AudioError as error:
        raise _BadValueError(f"{AUDIO}: {error.message}", error.remedy) from error
    return value


def _sentence(value: str, allow_empty: bool) -> str:
    sentence = join_words(value)
    if not (sentence or allow_empty):
        remedy = "add the transcript, or give --allow_empty_text true if nobody speaks"
        raise _BadValueError(f"{SENTENCE}: is empty", remedy)
    if reserved := find_reserved_words(sentence):
        raise _BadValueError(f"{SENTENCE}: has reserved symbols: {reserved}", "remove them")
    return sentence


def whisper_language(value: str) -> str:
    """Return Whisper's code of a language, as ``language_code``, or raise InputError."""
    from whisper.tokenizer import LANGUAGES  # Slow to import.

    code = language_code(value)
    if code not in LANGUAGES:
        message = f"{LANGUAGE}: {value!r} is not one of Whisper's"
        raise _BadValueError(message, "give a code such as en, or a name")
    return code


def _number(name: str, value: str, kind: Callable, least: float) -> int | float:
    try:
        number = kind(value)
    except ValueError:
        number = -math.inf
    if not least <= number < math.inf:
        whole = "whole number" if kind is int else "number"
        remedy = f"give a {whole} of {least} or more; give both {START} and {FACTOR} or neither"
        raise _BadValueError(f"{name}: {value!r}", remedy)
    return number
