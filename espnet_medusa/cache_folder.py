"""What is made once on a machine and kept: compiled kernels, converted models."""

import os
from pathlib import Path
from stat import S_IWGRP, S_IWOTH


class NotPrivate(Exception):
    """Why what lies there might be another user's, in one line."""


def cache_folder() -> Path:
    """Below the user's own cache folder, which XDG_CACHE_HOME may name."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "espnet_medusa")


def make_private(folder: Path) -> None:
    """Make the folder if it is not there, for the user alone.

    Raises:
        NotPrivate: As ``check_private`` says.
        OSError: It cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)


def check_private(path: Path) -> None:
    """What is run from here must be the user's own: nobody else may have written it.

    Raises:
        NotPrivate: A file or folder of another user, or one that others may write to.
        OSError: It is not there.
    """
    found = path.stat()
    if found.st_uid != os.geteuid():
        reason, remedy = f"belongs to user {found.st_uid}", f"run `chown {os.geteuid()} {path}`"
    elif found.st_mode & (S_IWGRP | S_IWOTH):
        reason, remedy = "others may write to it", f"run `chmod go-w {path}`"
    else:
        return
    raise NotPrivate(f"{path} is not used: {reason}; {remedy}, or set XDG_CACHE_HOME")
