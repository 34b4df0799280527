"""Build options from YAML files and dictionaries, and refuse unknown ones."""

import dataclasses
import difflib
import math
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_type_hints

import yaml

from espnet_medusa.errors import InputError
from espnet_medusa.files.yaml_text import load_yaml

Options = TypeVar("Options")
WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true, false",
    str: "text",
    dict: "options",
    Path: "a path",
    Sequence[int]: "a list of whole numbers",
    Sequence[float]: "a list of numbers",
    NoneType: "none",
}


def option(default: Any, help: str) -> Any:
    """A dataclass field for an option: its default, and the help text of the command line."""
    return dataclasses.field(default=default, metadata={"help": help})


def read_yaml(path: Path, remedy: str) -> Any:
    """Read a YAML file.

    Args:
        remedy: What the user can do, for error messages.

    Raises:
        InputError: The file cannot be read, or is not YAML.
    """
    try:
        return load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read ({reason}); {remedy}") from error


def read_config(path: Path, remedy: str) -> dict[str, Any]:
    """Read options from a YAML file; arguments as for ``read_yaml``.

    Raises:
        InputError: As for ``read_yaml``, or the file does not contain a mapping.
    """
    config = read_yaml(path, remedy)
    if not isinstance(config, dict):
        raise InputError(f"{path}: holds no options; {remedy}")
    return config


def build_options(kind: type[Options], values: Mapping[str, Any] | None, where: str) -> Options:
    """Make the dataclass ``kind`` from a mapping.

    Convert numpy's numbers to Python's, and 0 and 1 to booleans for boolean options.

    Args:
        kind: A dataclass; its fields are the options, its defaults theirs.
        values: Values from the config; None: no options.
        where: The config key, for messages (``decoder_conf``).

    Raises:
        InputError: A key of ``values`` is no option; the message lists those that are. A value is
            of another type than the option.
    """
    if not isinstance(values or {}, Mapping):
        raise InputError(f"{where}: {reprlib.repr(values)}; allowed: options with their values")
    values = dict(values or {})
    types = get_type_hints(kind)
    allowed = [field.name for field in dataclasses.fields(kind)]
    for name, value in values.items():
        if name not in allowed:
            shown = " ".join(str(name).split())
            raise InputError(f"{where}: unknown option {shown!r}{_allowed(shown, allowed)}")
        values[name] = _as_type(value, types[name], f"{where}: {name}")
    return kind(**values)


def _as_type(value: Any, expected: Any, where: str) -> Any:
    # Imported here: commands start without numpy, and after the hooks that silence typeguard.
    import numpy as np
    from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

    kinds = get_args(expected) if isinstance(expected, UnionType) else [expected]
    if isinstance(value, np.generic):
        value = value.item()
    if bool in kinds and type(value) is int and value in (0, 1):
        value = bool(value)
    try:
        check_type(value, expected, collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
        if isinstance(value, bool) and not {bool, Any} & {*kinds}:
            raise TypeCheckError("is a number in Python alone")
        if isinstance(value, str) and not value and not {str, Path, Any} & {*kinds}:
            raise TypeCheckError("is a list in Python alone")
    except TypeCheckError as error:
        allowed = " or ".join(WORDS.get(kind, str(kind)) for kind in kinds)
        raise InputError(f"{where}: {reprlib.repr(value)}; allowed: {allowed}") from error
    return value


def check_choice(value: Any, allowed: Sequence[str], where: str) -> None:
    """Refuse a value that is not among ``allowed``.

    Raises:
        InputError: With the value received and the values allowed.
    """
    if value not in allowed:
        raise InputError(f"{where}: {str(value)!r} is not known{_allowed(str(value), allowed)}")


def check_at_least(value: float, minimum: float, where: str) -> None:
    """Refuse a number below ``minimum``.

    Raises:
        InputError: With the value received and the least one allowed.
    """
    if value < minimum:
        raise InputError(f"{where}: {value} is too small; allowed: {minimum} or more")


def check_above(value: float, bound: float, where: str, at_most: float = math.inf) -> None:
    """Refuse a number that is not above ``bound``, or is above ``at_most``.

    Raises:
        InputError: With the value received and the range allowed.
    """
    if not bound < value <= at_most:
        most = "" if at_most == math.inf else f", at most {at_most}"
        raise InputError(f"{where}: {value}; allowed: above {bound}{most}")


def _allowed(name: str, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    return f"{hint}; allowed: {', '.join(allowed)}"
