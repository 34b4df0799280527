"""The user's cache folder, for compiled kernels and converted models."""

import os
from pathlib import Path
from stat import S_IWGRP, S_IWOTH


def cache_folder() -> Path:
    """Return the package's folder in XDG_CACHE_HOME, or else in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "espnet_medusa")


def make_private(folder: Path) -> None:
    """Create the folder if it does not exist, accessible only by the user.

    Raises:
        PermissionError: As ``check_private``.
        OSError: It cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)


def check_private(path: Path) -> None:
    """Check that only the user can write to a file or folder that code is run from.

    Raises:
        PermissionError: It belongs to another user, or others may write to it.
        OSError: It does not exist.
    """
    status, user = path.stat(), os.geteuid()
    if status.st_uid != user:
        reason = f"belongs to user {status.st_uid}, not {user}"
    elif status.st_mode & (S_IWGRP | S_IWOTH):
        reason = f"others may write to it; run `chmod go-w {path}`"
    else:
        return
    raise PermissionError(f"{path}: {reason}, or name another folder in XDG_CACHE_HOME")
