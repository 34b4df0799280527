"""Kaldi text tables: wav.scp, text, utt2spk, segments and their like.

A line is an id, white space, and a value that may itself hold white space. Files are UTF-8,
sorted by byte order (LC_ALL=C), ids are unique, and the last line ends with a newline.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.kaldi.problem import DataError, DataProblem

FIX_REMEDY = "run python -m espnet_medusa.stages.validate_data_dir DIR --fix true"
UTF8_BOM = b"\xef\xbb\xbf"


class TableError(DataError):
    """A table that cannot be read without losing or inventing lines."""


@dataclass(frozen=True)
class TableScan:
    """What a table holds, good or bad.

    Attributes:
        entries: Id to value, in file order; of repeated ids the first one.
        problems: What would lose or invent an entry (`read_table` refuses these).
        warnings: What Kaldi's rules forbid although the table reads well: order, line ends,
            blank lines.
        repeats: Ids that occur again, with the values of their later lines.
    """

    entries: dict[str, str] = field(default_factory=dict)
    problems: list[DataProblem] = field(default_factory=list)
    warnings: list[DataProblem] = field(default_factory=list)
    repeats: dict[str, list[str]] = field(default_factory=dict)


def sort_ids(ids) -> list[str]:
    """Sort ids as `LC_ALL=C sort` does."""
    return sorted(ids, key=lambda name: name.encode("utf-8"))


def scan_table(path: str | Path, require_value: bool = True) -> TableScan:
    """Read a table and list all of its defects instead of stopping at the first.

    Args:
        path: File to read.
        require_value: Whether an id without a value is a problem.
    """
    scan = TableScan()
    name = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        scan.problems.append(
            DataProblem(name, "", f"cannot be read ({error.strerror})", "create the file")
        )
        return scan
    if not data.strip():
        scan.problems.append(DataProblem(name, "", "is empty", "prepare the data again"))
        return scan
    if data.startswith(UTF8_BOM):
        data = data[len(UTF8_BOM) :]
        scan.warnings.append(DataProblem(name, "", "starts with a byte order mark", FIX_REMEDY))
    if not data.endswith(b"\n"):
        scan.warnings.append(DataProblem(name, "", "has no newline at its end", FIX_REMEDY))
    if b"\r\n" in data:
        scan.warnings.append(DataProblem(name, "", "has Windows line ends (CR LF)", FIX_REMEDY))
    for number, raw_line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
        _scan_line(scan, name, number, raw_line, require_value)
    _check_order(scan, name)
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
    key = fields[0]
    value = fields[1].rstrip() if len(fields) == 2 else ""
    if key in scan.entries:
        scan.repeats.setdefault(key, []).append(value)
        message = f"occurs again in line {number}"
        scan.problems.append(DataProblem(name, key, message, "keep one line for each id"))
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


def _check_order(scan: TableScan, name: str) -> None:
    previous = ""
    for key in scan.entries:
        if key.encode("utf-8") < previous.encode("utf-8"):
            message = f"is out of byte order: it follows {previous}"
            scan.warnings.append(DataProblem(name, key, message, f"LC_ALL=C sort, or {FIX_REMEDY}"))
            return  # One line is enough: sorting mends all of them.
        previous = key


def read_table(path: str | Path, require_value: bool = True) -> dict[str, str]:
    """Read a table.

    Args:
        path: File to read.
        require_value: Whether an id without a value is refused; else its value is "".

    Returns:
        Id to value, in file order.

    Raises:
        TableError: The file is missing or empty, has lines that are not UTF-8, repeated ids, or
            ids without a value; the message has one line for each.
    """
    scan = scan_table(path, require_value)
    if scan.problems:
        raise TableError(scan.problems)
    return scan.entries


def read_results(path: Path) -> dict[str, str]:
    """Read a table of results by id, which may be missing or empty where nothing was decoded."""
    if not path.is_file() or not path.stat().st_size:
        return {}
    return read_table(path, require_value=False)


def write_table(path: str | Path, entries: Mapping[str, str]) -> None:
    """Write a table sorted by byte order; readers see the old file or the whole new one.

    Args:
        path: File to write; its folder is created.
        entries: Id to value.

    Raises:
        ValueError: An id holds white space or is empty, or a value holds a line break.
    """
    lines = []
    for key in sort_ids(entries):
        value = entries[key]
        if key.split() != [key]:
            raise ValueError(f"{path}: {key!r} is no id: ids must not hold white space")
        if "\n" in value or "\r" in value:
            raise ValueError(f"{path}: {key}: the value {value!r} must not hold a line break")
        lines.append(f"{key} {value}".rstrip() + "\n")
    write_atomically(path, "".join(lines))
