"""What is made once on a machine and kept: compiled kernels, converted models."""

import os
from pathlib import Path
from stat import S_IWGRP, S_IWOTH


def cache_folder() -> Path:
    """Below the user's own cache folder, which XDG_CACHE_HOME may name."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "espnet_medusa")


def make_private(folder: Path) -> None:
    """Make the folder if it is not there, for the user alone.

    Raises:
        PermissionError: As ``check_private`` says.
        OSError: It cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)


def check_private(path: Path) -> None:
    """What is run from here must be the user's own: nobody else may have written it.

    Raises:
        PermissionError: A file or folder of another user, or one that others may write to.
        OSError: It is not there.
    """
    found, user = path.stat(), os.geteuid()
    if found.st_uid != user:
        reason = f"belongs to user {found.st_uid}, not {user}"
    elif found.st_mode & (S_IWGRP | S_IWOTH):
        reason = f"others may write to it; run `chmod go-w {path}`"
    else:
        return
    raise PermissionError(f"{path}: {reason}, or name another folder in XDG_CACHE_HOME")
