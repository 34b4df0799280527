"""YAML files with mistakes named by file and place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from espnet_medusa.errors import InputError
from espnet_medusa.options import read_yaml


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        InputError: It is missing, no YAML, or something else than a mapping.
    """
    return as_mapping(read_yaml(path, "mend the file or its path"), str(path))


def as_mapping(content: Any, where: str) -> dict[str, Any]:
    """The mapping that belongs here.

    Raises:
        InputError: It is none, or it is empty.
    """
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{where}: {content!r}; a mapping (key: value) is needed")
    return {str(key): value for key, value in content.items()}


def require(content: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    """Refuse a mapping without one of these keys.

    Raises:
        InputError: Names the keys that are missing.
    """
    missing = [name for name in names if content.get(name) in (None, "", [])]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} missing; needed: {', '.join(names)}")
