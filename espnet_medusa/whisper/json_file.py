"""JSON files that come with models."""

import json
from pathlib import Path

from espnet_medusa.errors import InputError


def read_json(path: Path) -> dict:
    """A JSON file that holds names and values.

    Raises:
        InputError: It cannot be read, or holds something else.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: no JSON: {error}; fetch it again") from error
    if not isinstance(fields, dict):
        raise InputError(f"{path}: holds no names with values; fetch it again")
    return fields
