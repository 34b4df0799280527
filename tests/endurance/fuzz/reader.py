"""A fuzzed reader as a function of bytes, and the folder for the files that it reads."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MEGABYTE = 1 << 20
IN_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Reader:
    """A fuzzed reader."""

    name: str  # name of the format, in reports and options
    # Reads a file with these bytes. Raises InputError if it refuses the file and AssertionError if
    # the result differs from the file's contents.
    read: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]  # returns small valid files, one of each kind
    words: tuple[bytes, ...] = ()  # byte strings with a meaning in the format
    max_bytes: int = 1024  # largest file
    room_bytes: int = 64 * MEGABYTE  # memory allowed in addition to a multiple of the file's size


@cache
def scratch_folder() -> Path:
    """Return the scratch folder of this process, in memory where possible."""
    parent = os.environ.get("TMPDIR") or (IN_MEMORY if os.path.isdir(IN_MEMORY) else None)
    folder = tempfile.mkdtemp(prefix="fuzz.", dir=parent)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write_scratch(name: str, data: bytes) -> Path:
    """Write a file, replacing the one of the same name."""
    path = scratch_folder() / name
    with open(path, "wb") as stream:
        stream.write(data)
    return path
