"""Files that are whole or as they were, and errors that say which file a full disk cut off."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STREAMS = tuple(map(Path, ("/dev", "/dev/fd", "/proc/self/fd")))  # /dev/stdout and its likes
FULL_BYTES = 1 << 16  # less is left than a writer asks for at once


def write_atomically(path: str | Path, text: str) -> None:
    """Write UTF-8 text to a temporary file beside `path`, then rename it.

    What is no file, such as a pipe, and /dev/stdout are written as they are: renaming would take
    their place. That of any other link it takes; what the link leads to may be somebody else's.

    Raises:
        OSError: It names the file.
    """
    path = Path(path)
    with naming(path):
        if path.parent in STREAMS or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8", newline="\n")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
            # mkstemp makes the file private; give it the mode that open() would have given.
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """What fails inside names this file or folder where it names none.

    A full disk is an error without a name, and of torch and libsndfile one that says nothing.

    Raises:
        OSError: There is no room on the disk, or the system says something else.
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
    """Whether the disk of a path, which may not be there yet, has no room left."""
    path = Path(path).absolute()
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    return shutil.disk_usage(there).free < FULL_BYTES
