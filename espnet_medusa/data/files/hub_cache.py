"""Downloads from the Hugging Face hub, also for a user whose cache folder cannot be written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from espnet_medusa.data.files.cache_folder import is_about, temporary_cache, warn_unwritable


def fetch(download: Callable[..., str], *arguments: Any, **options: Any) -> Path:
    """Return the path that a function of huggingface_hub downloads to; errors as the function."""
    from huggingface_hub.constants import HF_HUB_CACHE  # slow to import

    folder, reason = Path(HF_HUB_CACHE), "this user has no home"
    if folder.parts[0] != "~":  # huggingface_hub would make a folder of this name
        try:
            return Path(download(*arguments, **options))
        except OSError as error:
            if not is_about(error, folder):
                raise
            reason = str(error)
    temporary = temporary_cache() / "hub"
    warn_unwritable(folder, reason, temporary, "HF_HOME")
    return Path(download(*arguments, **options, cache_dir=temporary))
