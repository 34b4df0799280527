"""What a file that ``torch.save`` wrote would have torch build, looked at before it does.

torch itself refuses code (``weights_only``). Refused here is what may take memory without bounds:
compressed records, objects of other kinds than those that checkpoints are made of, and, in the
format before PyTorch 1.6, storages that are larger than the file.
"""

import mmap
import pickletools
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from espnet_medusa.errors import InputError

# Names in a pickle, "module name", of what tensors, their containers and plain values are made of.
PARTS = re.compile(
    r"collections OrderedDict|(__builtin__|builtins) set|_codecs encode"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|parameter)"
    r"|torch ([A-Z][A-Za-z0-9]*(?<!Typed)(?<!Untyped)Storage|Size|device|[a-z]+[0-9]+)"
)
ZIP, PICKLE = b"PK\x03\x04", ".pkl"
ANY_SIZE = 1 << 20  # of numbers in old files, however small
OLD_MAGIC = 0x1950A86A20F9469CFC6C
OLD_PICKLES = 5  # magic, version, machine, content, keys of the storages behind them

Operations = Iterable[tuple[pickletools.OpcodeInfo, Any, int | None]]


def check_torch_file(path: Path) -> None:
    """Refuse what is no checkpoint or asks for more than it holds.

    Raises:
        InputError: Says what is in the file at ``path``.
        ValueError, OSError, zipfile.BadZipFile: It is damaged, or cannot be read.
    """
    with path.open("rb") as stream:
        is_zip = stream.read(len(ZIP)) == ZIP  # as torch tells
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            for record in archive.infolist():
                if record.compress_type != zipfile.ZIP_STORED:
                    raise InputError(f"{record.filename} is compressed, which torch never does")
                if record.compress_size > path.stat().st_size:  # zipfile would set it aside
                    raise InputError(f"{record.filename} is longer than the file")
                if record.filename.endswith(PICKLE):
                    _check_names(pickletools.genops(archive.read(record)))
        return
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for _ in range(OLD_PICKLES):
            operations = [*pickletools.genops(data)]
            _check_names(operations)
            _check_numbers(operations, max(len(data), ANY_SIZE))


def _check_names(operations: Operations) -> None:
    for operation, name, _ in operations:
        if operation.name == "GLOBAL" and PARTS.fullmatch(name) is None:
            raise InputError(f"it holds {name.replace(' ', '.')}")
        if operation.name == "STACK_GLOBAL":  # torch.save does not write it
            raise InputError("it is of another pickle protocol than torch's")


def _check_numbers(operations: Operations, most: int) -> None:
    for _, number, _ in operations:
        if isinstance(number, int) and most < number != OLD_MAGIC:
            raise InputError(f"it asks for {number} values and is of {most} bytes")
