"""Atomic writes, and the file's name in errors of a full disk."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

STREAM_FOLDERS = tuple(map(Path, ("/dev", "/dev/fd", "/proc/self/fd")))  # have /dev/stdout etc.
# Errors of one path; others, such as a full disk, concern all files.
PATH_ERRORS = (errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST)
FULL_BYTES = 1 << 16  # a disk with less free space counts as full


def write_atomically(path: str | Path, text: str) -> None:
    """Write UTF-8 text as `open_atomically` does."""
    with open_atomically(path) as stream:
        stream.write(text)


@contextmanager
def open_atomically(path: str | Path) -> Iterator[TextIO]:
    """Yield a stream of UTF-8 text to a temporary file next to `path`; rename it at the end.

    Errors name `path`, which stays unchanged if the block fails. Pipes and /dev/stdout are written
    directly, as renaming would replace them. Any other link is replaced: its target may belong to
    another user.
    """
    path = Path(path)
    with naming(path):
        if path.parent in STREAM_FOLDERS or (path.exists() and not path.is_file()):
            with path.open("w", encoding="utf-8", newline="\n") as stream:
                yield stream
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
                yield stream
            # mkstemp makes the file private; set the mode that open() would have set.
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Turn errors of the block into an OSError with the path, if they lack a file name.

    On a full disk, Python's error has no file name, and errors of torch and libsndfile have no
    reason. Errors without an error number are changed only if the disk is full.
    """
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if getattr(error, "filename", None) is None and (number or is_full(path)):
            number = number or errno.ENOSPC
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


def is_full(path: str | Path) -> bool:
    """Return whether the disk of a path is full; the path need not exist yet."""
    path = Path(path).absolute()
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return shutil.disk_usage(existing).free < FULL_BYTES
