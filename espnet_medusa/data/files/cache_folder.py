"""The user's cache folder, for compiled kernels, converted Whispers and unpacked models."""

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from stat import S_IWGRP, S_IWOTH
from typing import TypeVar

from espnet_medusa.data.errors import InputError

VARIABLE = "XDG_CACHE_HOME"
Result = TypeVar("Result")

logger = logging.getLogger(__name__)


def cache_folder() -> Path | None:
    """Return the package's folder in XDG_CACHE_HOME, or else in ~/.cache; None without a home."""
    base = os.path.expanduser(os.environ.get(VARIABLE) or "~/.cache")
    return None if base.startswith("~") else Path(base, "espnet_medusa")


def in_cache(name: str, use: Callable[[Path], Result]) -> Result:
    """Return ``use(folder)`` for a folder in the cache, which ``use`` reads or writes.

    If the cache cannot be written, warn and use a temporary folder, which later commands of the
    user find, too. Raise InputError if there is none; other errors are those of ``use``.
    """
    folder, reason = cache_folder(), "this user has no home"
    if folder is not None:
        try:
            return use(folder / name)
        except OSError as error:
            # Errors of ``check_private`` have no file name.
            foreign = isinstance(error, PermissionError) and not os.access(folder / name, os.W_OK)
            if not is_about(error, folder) and not (error.filename is None and foreign):
                raise
            reason = str(error)
    temporary = temporary_cache()
    warn_unwritable(folder or "~/.cache", reason, temporary, VARIABLE)
    return use(temporary / name)


def is_about(error: OSError, folder: Path) -> bool:
    """Return whether an error names a folder, something in it, or a folder around it."""
    if error.filename is None:
        return False
    path = Path(os.fsdecode(error.filename))
    return path.is_relative_to(folder) or folder.is_relative_to(path)


@cache
def temporary_cache() -> Path:
    """Create the user's private folder among temporary files; of others, one for this process."""
    try:
        folder = Path(tempfile.gettempdir(), f"espnet_medusa-{os.geteuid()}")
        try:
            if folder.is_symlink():
                raise PermissionError(f"{folder}: is a link")
            make_private(folder)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:  # another user made it
            own = Path(tempfile.mkdtemp(prefix="espnet_medusa-"))
            atexit.register(shutil.rmtree, own, ignore_errors=True)
            return own
    except OSError as error:
        raise InputError(
            f"neither a cache nor a temporary folder can be written ({error}); name a folder in "
            f"{VARIABLE} or TMPDIR"
        ) from error


@cache
def warn_unwritable(folder: Path | str, reason: str, temporary: Path, variable: str) -> None:
    """Warn, once per process, that a temporary folder is used instead."""
    where = f"caching in {temporary}; name another folder in {variable}"
    logger.warning(f"{folder}: cannot be written ({reason}); {where}")


def make_private(folder: Path) -> None:
    """Create the folder, accessible only by the user, or check an existing one."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)


def check_private(path: Path) -> None:
    """Raise PermissionError if other users may write to a file or folder with code to run."""
    status, user = path.stat(), os.geteuid()
    if status.st_uid != user:
        reason = f"belongs to user {status.st_uid}, not {user}; change its owner"
    elif status.st_mode & (S_IWGRP | S_IWOTH):
        reason = f"others may write to it; run `chmod go-w {path}`"
    else:
        return
    raise PermissionError(f"{path}: {reason}, or name another folder in {VARIABLE}")
