"""A folder in memory for readers that take paths."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

IN_MEMORY = "/dev/shm"


@cache
def scratch_folder() -> Path:
    """This process's."""
    parent = os.environ.get("TMPDIR") or (IN_MEMORY if os.path.isdir(IN_MEMORY) else None)
    folder = tempfile.mkdtemp(prefix="fuzz.", dir=parent)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write_scratch(name: str, data: bytes) -> Path:
    """A file of these bytes, in place of the one before."""
    path = scratch_folder() / name
    with open(path, "wb") as stream:
        stream.write(data)
    return path
