"""Fuzzed readers as functions of bytes, the files that they read, and their stored results."""

import atexit
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

MEGABYTE = 1 << 20
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
COMMITTED = Path(__file__).with_name("corpus")
CORPUS = "corpus"  # inputs that reached new code
DEFECTS = "defects"  # the smallest input of each defect, and its traceback
ENDS = "ends"  # inputs that ended the process
COUNTS = "counts"
COUNTED = np.dtype([(name, np.int64) for name in ("executions", "refused", "read")])


@dataclass(frozen=True)
class Reader:
    # Reads a file with these bytes. Raises InputError if it refuses the file and AssertionError if
    # the result differs from the file's contents.
    read: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]  # returns small valid files, one of each kind
    words: Sequence[bytes] = ()  # byte strings with a meaning in the format
    max_bytes: int = 1024  # largest file
    room_bytes: int = 64 * MEGABYTE  # memory allowed in addition to a multiple of the file's size


READERS: dict[str, Reader] = {}


def fuzzed(**fields) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Add a function to the fuzzed readers under its name, with these fields of ``Reader``."""

    def add(read: Callable[[bytes], None]) -> Callable[[bytes], None]:
        READERS[read.__name__] = Reader(read, **fields)
        return read

    return add


@cache
def scratch_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="fuzz.", dir=os.environ.get("TMPDIR") or IN_MEMORY)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write_scratch(name: str, data: bytes) -> Path:
    path = scratch_folder() / name
    path.write_bytes(data)
    return path


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive; equal files make equal archives."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return stream.getvalue()


def unzipped(stream: Path | io.BytesIO) -> dict[str, bytes]:
    with zipfile.ZipFile(stream) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def committed_inputs(name: str) -> list[bytes]:
    path = COMMITTED / f"{name}.zip"
    return [*unzipped(path).values()] if path.is_file() else []


def read_counts(folder: Path) -> tuple[int, ...]:
    """Return the numbers of all, refused and read inputs; zeros before the first run."""
    path = folder / COUNTS
    return tuple(np.fromfile(path, np.int64).tolist()) if path.is_file() else (0, 0, 0)


def mapped_counts(folder: Path) -> np.ndarray:
    """Return the counts in a memory-mapped file, which survive a killed process."""
    np.array(read_counts(folder)).tofile(folder / COUNTS)
    return np.memmap(folder / COUNTS, COUNTED, "r+")
