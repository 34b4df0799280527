"""A CSV file with aiola's columns becomes a Kaldi data directory."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from espnet_medusa.audio.source import AudioError, is_pipe, open_source, source_paths
from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.csv_files.table import (
    AUDIO,
    FACTOR,
    LANGUAGE,
    SENTENCE,
    START,
    CsvRow,
    CsvTable,
    read_csv,
)
from espnet_medusa.kaldi.data_dir import RESERVED_WORDS, make_spk2utt
from espnet_medusa.kaldi.output_dir import fingerprint, staged_output
from espnet_medusa.kaldi.problem import DataError, DataProblem
from espnet_medusa.kaldi.table import write_table

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
