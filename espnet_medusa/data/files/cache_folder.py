"""The user's cache folder, for compiled kernels, converted Whispers and unpacked models."""

import os
from pathlib import Path
from stat import S_IWGRP, S_IWOTH


def cache_folder() -> Path:
    """Return the package's folder in XDG_CACHE_HOME, or else in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "espnet_medusa")


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
    raise PermissionError(f"{path}: {reason}, or name another folder in XDG_CACHE_HOME")
