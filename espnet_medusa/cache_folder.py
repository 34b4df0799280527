"""What is made once on a machine and kept: compiled kernels, converted models."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Below the user's own cache folder, which XDG_CACHE_HOME may name."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "espnet_medusa")
