"""Read CTranslate2's ``model.bin``: named variables; the whole structure is checked first.

Numbers are little-endian. A string is its number of bytes (u16) and the bytes, the last one 0::

    u32 6, the format | string, specification | u32, its revision
    u32, number of variables; of each: string, name | u8, rank | u32 each, dimensions
                                       | u8, type | u32, number of bytes | values
    u32, number of aliases; of each: string, alias | string, the variable's name
"""

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from espnet_medusa.data.errors import InputError

BINARY = "model.bin"
FORMAT = 6
# By type number. numpy has no bfloat16, which is the upper half of a float32.
TYPES = {0: "float32", 1: "int8", 2: "int16", 3: "int32", 4: "float16", 5: "bfloat16"}
FLOATS = ("float32", "float16", "bfloat16")
MAX_RANK = 3  # weights of a convolution
MAX_NAME = 256  # bytes; Whisper's longest name has 60
MAX_REUSE = 3  # maximum size of variables and aliases, divided by the file's; Whisper: below 2
NAME = re.compile(rb"[\w./-]+\0")
SCALE = "_scale"
REMEDY = "fetch it again, or convert the model again with a current ctranslate2"


@dataclass(frozen=True)
class Variable:
    """Type and place of values in a file."""

    type: str  # one of ``TYPES``
    shape: tuple[int, ...]  # empty for a scalar
    start: int  # offset of the first byte

    @property
    def stored_as(self) -> np.dtype:
        """numpy's type of the values in the file."""
        return np.dtype("uint16" if self.type == "bfloat16" else self.type).newbyteorder("<")

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.stored_as.itemsize


@dataclass(frozen=True)
class BinaryFile:
    """A ``model.bin`` with a valid structure."""

    path: Path
    specification: str  # kind of model, such as ``WhisperSpec``
    revision: int  # of the specification
    variables: Mapping[str, Variable]  # by name or alias
    data: np.ndarray  # (bytes of the file,), memory-mapped

    def read(self, name: str) -> np.ndarray:
        """Return a variable in float32, dequantized; raise InputError for a bad scale."""
        variable = self.variables[name]
        values = self._floats(variable)
        if variable.type in FLOATS or not variable.shape:
            return values
        scale = self._floats(self.variables[name + SCALE])
        if not (np.isfinite(scale) & (scale > 0)).all():
            raise InputError(f"{self.path}: {name + SCALE}: not all above 0; {REMEDY}")
        return values / scale.reshape(*scale.shape, *[1] * (values.ndim - scale.ndim))

    def _floats(self, variable: Variable) -> np.ndarray:
        count = math.prod(variable.shape)
        values = np.frombuffer(self.data, variable.stored_as, count, variable.start)
        if variable.type == "bfloat16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32).reshape(variable.shape)


def open_binary(path: Path) -> BinaryFile:
    """Map a ``model.bin``; raise InputError if its structure is invalid. Values are not checked."""
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {REMEDY}") from error
    cursor = _Cursor(path, data)
    version = cursor.number("I", "format")
    if version != FORMAT:
        raise cursor.refusal(f"format {version}; allowed: {FORMAT}, that of CTranslate2 3 and 4")
    specification = cursor.string("specification")
    revision = cursor.number("I", "revision")
    variables: dict[str, Variable] = {}
    for _ in range(cursor.number("I", "number of variables")):
        name = _new_name(cursor, variables)
        variables[name] = _read_variable(cursor, name)
    for _ in range(cursor.number("I", "number of aliases")):
        alias = _new_name(cursor, variables)
        name = cursor.string(f"alias {alias}")
        if name not in variables:
            raise cursor.refusal(f"alias {alias} refers to {name}, which does not exist")
        variables[alias] = variables[name]
        if name + SCALE in variables:
            variables.setdefault(alias + SCALE, variables[name + SCALE])
    if cursor.position != len(data):
        raise cursor.refusal(f"{len(data) - cursor.position} bytes too many")
    _check_scales(cursor, variables)
    total = sum(variable.num_bytes for variable in variables.values())
    if total > MAX_REUSE * len(data):
        raise cursor.refusal(f"variables and aliases take {total} bytes, the file {len(data)}")
    return BinaryFile(path, specification, revision, variables, data)


def _new_name(cursor: "_Cursor", variables: Mapping[str, Variable]) -> str:
    name = cursor.string("name of a variable")
    if name in variables:
        raise cursor.refusal(f"{name} occurs twice")
    return name


def _read_variable(cursor: "_Cursor", name: str) -> Variable:
    rank = cursor.number("B", f"rank of {name}")
    if rank > MAX_RANK:
        raise cursor.refusal(f"{name}: rank {rank}; allowed: at most {MAX_RANK}")
    shape = tuple(cursor.number("I", f"shape of {name}") for _ in range(rank))
    if 0 in shape:
        raise cursor.refusal(f"{name}: shape {shape}; allowed: dimensions of 1 or more")
    number = cursor.number("B", f"type of {name}")
    if number not in TYPES:
        raise cursor.refusal(f"{name}: type {number}; allowed: 0 to {max(TYPES)}")
    num_bytes = cursor.number("I", f"size of {name}")
    variable = Variable(TYPES[number], shape, cursor.position)
    if num_bytes != variable.num_bytes:
        kind = f"{variable.type} of shape {shape}"
        raise cursor.refusal(f"{name}: {num_bytes} bytes; {kind} takes {variable.num_bytes}")
    cursor.skip(num_bytes, name)
    return variable


def _check_scales(cursor: "_Cursor", variables: Mapping[str, Variable]) -> None:
    for name, variable in variables.items():
        if not variable.shape or variable.type in FLOATS:
            continue
        if variable.type == "int32":
            raise cursor.refusal(f"{name}: int32; allowed: float32, float16, bfloat16, int8, int16")
        scale = variables.get(name + SCALE)
        # One scale per row; int16: one scale for all.
        shape = variable.shape[:1] if variable.type == "int8" else ()
        if scale is None or scale.shape != shape or scale.type not in FLOATS:
            raise cursor.refusal(f"{name}: {variable.type} without {name + SCALE} of shape {shape}")


class _Cursor:
    """A position in a file that never passes its end."""

    def __init__(self, path: Path, data: np.ndarray):
        self.path, self.data, self.position = path, data, 0

    def refusal(self, problem: str) -> InputError:
        return InputError(f"{self.path}: {problem}; {REMEDY}")

    def skip(self, count: int, what: str) -> int:
        """Skip ``count`` bytes and return where they start."""
        start, left = self.position, len(self.data) - self.position
        if count > left:
            raise self.refusal(f"is truncated: {what} has {count} bytes at {start}, {left} remain")
        self.position += count
        return start

    def number(self, code: str, what: str) -> int:
        start = self.skip(struct.calcsize(f"<{code}"), what)
        return struct.unpack_from(f"<{code}", self.data, start)[0]

    def string(self, what: str) -> str:
        length = self.number("H", what)
        start = self.skip(length, what)
        text = self.data[start : start + min(length, MAX_NAME)].tobytes()
        if length > MAX_NAME or not NAME.fullmatch(text):
            raise self.refusal(f"{what} at {start}: {text[:20]} is no name")
        return text[:-1].decode("ascii")
