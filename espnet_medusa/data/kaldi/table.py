"""Kaldi text tables: wav.scp, text, utt2spk, segments and similar files.

A line is an id, white space, and a value, which may contain white space. Files are UTF-8 and
sorted by byte order (LC_ALL=C), ids are unique, and the last line ends with a newline.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import write_atomically

FIX_REMEDY = "run python -m espnet_medusa.bin.stage validate_data_dir DIR --fix true"
UTF8_BOM = b"\xef\xbb\xbf"
Item = TypeVar("Item")


@dataclass(frozen=True)
class DataProblem:
    """A defect of a data directory and how to remove it; `str()` is one line."""

    file: str  # the file with the defect
    id: str  # utterance, recording or speaker id, or `line N`; empty for the whole file
    message: str  # what is wrong, with the value received
    remedy: str  # what the user can do about it

    def __str__(self) -> str:
        where = f"{self.file}: {self.id}" if self.id else self.file
        return " ".join(f"{where}: {self.message}; {self.remedy}".split())


class DataError(InputError):
    """All ``problems`` of a table or a data directory; `str()` has one line for each."""

    def __init__(self, problems: Iterable[DataProblem]):
        self.problems = list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(frozen=True)
class TableScan:
    """The content of a table and its defects.

    `read_table` refuses tables with `problems`, such as repeated ids. `warnings` are harmless
    violations of Kaldi's rules: order, line ends, blank lines.
    """

    entries: dict[str, str] = field(default_factory=dict)  # in file order; the first of repeats
    problems: list[DataProblem] = field(default_factory=list)
    warnings: list[DataProblem] = field(default_factory=list)
    repeats: dict[str, list[str]] = field(default_factory=dict)  # id to values of later lines


def sort_ids(ids: Iterable[str]) -> list[str]:
    """Sort ids as `LC_ALL=C sort` does."""
    return sorted(ids, key=lambda name: name.encode("utf-8"))


def join_words(text: str) -> str:
    """Join words by single blanks, as ESPnet's scoring and token lists do.

    Tabs, no-break spaces, ideographic spaces and all other Unicode white space separate words.
    """
    return " ".join(text.split())


def scan_table(path: str | Path, require_value: bool = True) -> TableScan:
    """Read a table and list its defects; with ``require_value`` also ids without a value."""
    name = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        remedies = {IsADirectoryError: "give a file", PermissionError: "change its permissions"}
        remedy = remedies.get(type(error), "create the file")
        return TableScan(problems=[DataProblem(name, "", reason, remedy)])
    if not data.strip():
        return TableScan(problems=[DataProblem(name, "", "is empty", "prepare the data again")])
    scan = TableScan()
    for has_defect, message in (
        (data.startswith(UTF8_BOM), "starts with a byte order mark"),
        (not data.endswith(b"\n"), "has no newline at its end"),
        (b"\r\n" in data, "has Windows line ends (CR LF)"),
    ):
        if has_defect:
            scan.warnings.append(DataProblem(name, "", message, FIX_REMEDY))
    lines = data.removeprefix(UTF8_BOM).removesuffix(b"\n").split(b"\n")
    for number, raw_line in enumerate(lines, 1):
        _scan_line(scan, name, number, raw_line, require_value)
    for previous, key in pairwise(scan.entries):
        if key.encode("utf-8") < previous.encode("utf-8"):
            message = f"is out of byte order: it follows {previous}"
            scan.warnings.append(DataProblem(name, key, message, f"LC_ALL=C sort, or {FIX_REMEDY}"))
            break  # One warning is enough: sorting fixes all lines.
    return scan


def _scan_line(
    scan: TableScan, name: str, number: int, raw_line: bytes, require_value: bool
) -> None:
    try:
        fields = raw_line.decode("utf-8").split(maxsplit=1)
    except UnicodeDecodeError as error:
        byte = raw_line[error.start]
        message = f"line {number} is not UTF-8 (byte 0x{byte:02x} at column {error.start + 1})"
        key = _decodable_id(raw_line) or f"line {number}"
        scan.problems.append(DataProblem(name, key, message, "convert the file with iconv"))
        return
    if not fields:
        scan.warnings.append(DataProblem(name, f"line {number}", "is blank", FIX_REMEDY))
        return
    key, value = fields[0], "".join(fields[1:]).rstrip()
    if key in scan.entries:
        scan.repeats.setdefault(key, []).append(value)
        message = f"occurs again in line {number}"
        scan.problems.append(DataProblem(name, key, message, "keep one line for each id"))
        return
    if "\r" in value:
        message = f"has a carriage return inside line {number}"
        scan.problems.append(DataProblem(name, key, message, "remove it"))
        return
    if name.endswith("utt2spk") and len(value.split()) > 1:
        message = f"has a speaker of more than one word: {value}"
        scan.problems.append(DataProblem(name, key, message, "keep one word"))
        return
    scan.entries[key] = value
    if require_value and not value:
        message = f"has no value (line {number})"
        scan.problems.append(DataProblem(name, key, message, "add the value or remove the id"))


def _decodable_id(raw_line: bytes) -> str:
    try:
        return b"".join(raw_line.split(maxsplit=1)[:1]).decode("utf-8")
    except UnicodeDecodeError:
        return ""


def read_table(path: str | Path, require_value: bool = True) -> dict[str, str]:
    """Read a table: id to value, in file order; raise DataError with all problems of the file."""
    scan = scan_table(path, require_value)
    if scan.problems:
        raise DataError(scan.problems)
    return scan.entries


def read_results(path: Path) -> dict[str, str]:
    """Read a table of results by id; a missing or empty file has none."""
    if not path.is_file() or not path.stat().st_size:
        return {}
    return read_table(path, require_value=False)


def write_table(path: str | Path, entries: Mapping[str, str]) -> None:
    """Write a table sorted by byte order, atomically; its folder is created.

    Raises ValueError if an id is empty or has white space, or a value has a line break.
    """
    lines = []
    for key in sort_ids(entries):
        value = entries[key]
        if key.split() != [key]:
            raise ValueError(f"{path}: id {key!r} is empty or has white space; rename it")
        if "\n" in value or "\r" in value:
            raise ValueError(f"{path}: {key}: the value {value!r} has a line break; remove it")
        lines.append(f"{key} {value}".rstrip() + "\n")
    write_atomically(path, "".join(lines))


def split_scp(keys: Sequence[Item], nj: int) -> list[Sequence[Item]]:
    """Split a list for `nj` jobs, as Kaldi's split_scp.pl does.

    The parts are in order, and their lengths differ by at most one. Raises ValueError without jobs
    or keys.
    """
    if nj < 1 or not keys:
        raise ValueError(f"cannot split {len(keys)} lines for {nj} jobs; give at least 1 of each")
    n_jobs = min(nj, len(keys))
    bounds = [job * len(keys) // n_jobs for job in range(n_jobs + 1)]
    return [keys[start:end] for start, end in pairwise(bounds)]
