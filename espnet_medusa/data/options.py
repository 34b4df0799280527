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

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.yaml_text import load_yaml

Options = TypeVar("Options")
NONE = ("none", "null", "nil")
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


def option(default: Any, help: str, group: str | None = None) -> Any:
    """Return a dataclass field for an option: its help text, and its group in a command's help."""
    return dataclasses.field(default=default, metadata={"help": help, "group": group})


def read_yaml(path: Path, remedy: str) -> Any:
    """Read a YAML file; raise InputError, which ends with the remedy, if that fails."""
    try:
        return load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read ({reason}); {remedy}") from error


def read_config(path: Path, remedy: str) -> dict[str, Any]:
    """Read a mapping of options; errors as ``read_yaml``."""
    config = read_yaml(path, remedy)
    if not isinstance(config, dict):
        raise InputError(f"{path}: contains no options; {remedy}")
    return config


def build_options(kind: type[Options], values: Mapping[str, Any] | None, where: str) -> Options:
    """Make the dataclass ``kind``, whose fields are the options, from a mapping.

    Convert numpy's numbers to Python's, and 0 and 1 to booleans for boolean options. Raise
    InputError if an option is unknown, or its value has another type. ``where`` is the config key
    of the options, for messages.
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


def pick_options(kind: type[Options], given: Any, **others: Any) -> Options:
    """Make the dataclass ``kind`` from ``others``, and else from attributes of ``given``."""
    names = [field.name for field in dataclasses.fields(kind) if field.name not in others]
    return kind(**{name: getattr(given, name) for name in names}, **others)


def _as_type(value: Any, expected: Any, where: str) -> Any:
    # Imported late: numpy slows the start, and ``make_imports_quiet`` must run before typeguard.
    import numpy as np
    from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

    kinds = get_args(expected) if isinstance(expected, UnionType) else [expected]
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    # As on the command line, and in openai-whisper: None.
    if isinstance(value, str) and value.lower() in NONE and not {str, Path, Any} & {*kinds}:
        value = None if NoneType in kinds else value
    if bool in kinds and type(value) is int and value in (0, 1):
        value = bool(value)
    try:
        check_type(value, expected, collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS)
        if isinstance(value, bool) and not {bool, Any} & {*kinds}:
            raise TypeCheckError("a bool is also an int")
        if isinstance(value, str) and not value and not {str, Path, Any} & {*kinds}:
            raise TypeCheckError("an empty text is also a sequence of any type")
    except TypeCheckError as error:
        allowed = " or ".join(WORDS.get(kind, str(kind)) for kind in kinds)
        raise InputError(f"{where}: {reprlib.repr(value)}; allowed: {allowed}") from error
    return value


def check_choice(value: Any, allowed: Sequence[str], where: str) -> None:
    """Raise InputError for a value that is not among ``allowed``."""
    if value not in allowed:
        raise InputError(f"{where}: {str(value)!r} is not known{_allowed(str(value), allowed)}")


def check_at_least(value: float, minimum: float, where: str) -> None:
    """Raise InputError for a number below ``minimum``, or NaN."""
    if not value >= minimum:
        raise InputError(f"{where}: {value} is too small; allowed: {minimum} or more")


def check_positive(value: Any, where: str) -> None:
    """Raise InputError for anything but an integer above 0."""
    check_at_least(_as_type(value, int, where), 1, where)


def check_finite(values: Mapping[str, Any]) -> None:
    """Raise InputError for an option, by name, that is NaN or infinite."""
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{name}: {value}; allowed: a finite number")


def check_above(value: float, bound: float, where: str, at_most: float = math.inf) -> None:
    """Raise InputError for a number that is not above ``bound``, or is above ``at_most``."""
    if not bound < value <= at_most:
        most = "" if at_most == math.inf else f", at most {at_most}"
        raise InputError(f"{where}: {value}; allowed: above {bound}{most}")


def _allowed(name: str, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    return f"{hint}; allowed: {', '.join(allowed)}"


def parse_rate(text: str) -> int:
    """Parse a sample rate in Hz (`16k` is 16000); raise ValueError if it is not above 0."""
    number, factor = (text[:-1], 1000) if text.lower().endswith("k") else (text, 1)
    try:
        rate = round(float(number) * factor)
    except (ValueError, OverflowError):  # OverflowError: inf
        rate = 0
    if rate <= 0:
        raise ValueError(f"{text}: allowed: a sample rate such as 16k or 16000")
    return rate
