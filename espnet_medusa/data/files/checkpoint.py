"""Read untrusted checkpoints without running their code, in memory limited by their size.

torch itself refuses code (``weights_only``). ``check_torch_file`` also refuses files that would
make torch allocate unbounded memory. These have compressed records, objects that do
not occur in checkpoints, or, in the format before PyTorch 1.6, storages larger than the file.
"""

import mmap
import pickletools
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from espnet_medusa.data.errors import InputError, first_line

# Allowed names in a pickle, "module name": parts of tensors, their containers and plain values.
ALLOWED_NAMES = re.compile(
    r"collections OrderedDict|(__builtin__|builtins) set|_codecs encode"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|parameter)"
    r"|torch ([A-Z][A-Za-z0-9]*(?<!Typed)(?<!Untyped)Storage|Size|device|[a-z]+[0-9]+)"
)
ZIP, PICKLE = b"PK\x03\x04", ".pkl"
ANY_SIZE = 1 << 20  # maximum number in a file of the old format; for larger files: their size
OLD_MAGIC = 0x1950A86A20F9469CFC6C
OLD_PICKLES = 5  # magic, version, machine, content, keys of the storages
# Entries with the state dict in ESPnet's checkpoint.pth, DeepSpeed's files and Lightning's .ckpt.
CONTAINERS = ("model", "module", "state_dict")
MAX_REUSE = 3  # limit of the tensors' total size, as a multiple of the file's size


def check_torch_file(path: Path) -> None:
    """Raise InputError for files that are no checkpoint or would allocate more than they contain.

    Raises ValueError, OSError or zipfile.BadZipFile for damaged files.
    """
    if is_zip(path):
        with zipfile.ZipFile(path) as archive:
            for record in archive.infolist():
                if record.compress_type != zipfile.ZIP_STORED:
                    raise InputError(f"{record.filename} is compressed, which torch never does")
                if record.compress_size > path.stat().st_size:  # zipfile would allocate it
                    raise InputError(f"{record.filename} is longer than the file")
                if record.filename.endswith(PICKLE):
                    _check_names(pickletools.genops(archive.read(record)))
        return
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for _ in range(OLD_PICKLES):
            operations = [*pickletools.genops(data)]
            _check_names(operations)
            limit = max(len(data), ANY_SIZE)
            for _, number, _ in operations:
                if isinstance(number, int) and limit < number != OLD_MAGIC:
                    raise InputError(f"it declares {number} values; allowed: {limit}")


def is_zip(path: Path) -> bool:
    """Return whether a file has torch's format since PyTorch 1.6, which can be mapped to memory."""
    with path.open("rb") as stream:
        return stream.read(len(ZIP)) == ZIP  # torch's own test


def _check_names(operations: Iterable[tuple[pickletools.OpcodeInfo, Any, int | None]]) -> None:
    for operation, name, _ in operations:
        if operation.name == "GLOBAL" and ALLOWED_NAMES.fullmatch(name) is None:
            raise InputError(f"it contains {name.replace(' ', '.')}")
        if operation.name == "STACK_GLOBAL":  # torch.save does not write it
            raise InputError("it is of another pickle protocol than torch's")


def load_weights(path: Path, mapped: bool = False) -> dict[str, torch.Tensor]:
    """Read a state dict: ``.pth`` with ``weights_only``, or ``.safetensors``.

    With ``mapped``, a file for which ``is_zip`` is true is mapped into memory: it is read on
    demand, and must not change.
    Raises InputError if the file is missing, is no checkpoint, or contains more than weights.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint; train the model first, or correct the path")
    if path.suffix == ".safetensors":
        with open_safetensors(path) as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    weights = load_pickled(path, mapped and is_zip(path))
    for name in CONTAINERS:
        if isinstance(weights, Mapping) and isinstance(weights.get(name), Mapping):
            weights = weights[name]
    return check_state_dict(weights, path)


def load_pickled(path: Path, mmap: bool = False) -> Any:
    """Read a ``torch.save`` file of plain values and tensors, or map it into memory.

    Raises InputError if the file is damaged, compressed, or would run code.
    """
    check_readable(path)
    try:
        check_torch_file(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # torch raises many kinds of errors for a damaged file
        raise InputError(
            f"{path}: not a checkpoint with weights only ({first_line(error)}); fetch it again, "
            "save the state dict, or convert it to safetensors if you trust it"
        ) from error


def check_readable(path: Path) -> None:
    """Raise InputError without permission to read, which safetensors reports as a missing file."""
    try:
        path.open("rb").close()
    except PermissionError as error:
        raise InputError(f"{path}: permission denied; let this user read it") from error
    except OSError:
        return  # the readers describe it


def check_state_dict(weights: Any, path: Path) -> dict[str, torch.Tensor]:
    """Return a state dict; raise InputError for other content, or tensors larger than the file.

    With strides of 0, tensors expand a few stored values to any size.
    """
    if not isinstance(weights, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in weights.items()
    ):
        raise InputError(f"{path}: contains no state dict; save the model's state_dict()")
    size, num_bytes = path.stat().st_size, sum(value.nbytes for value in weights.values())
    if num_bytes > MAX_REUSE * size:
        raise InputError(f"{path}: {num_bytes} bytes of tensors in {size}; fetch it again")
    return dict(weights)


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """Open a ``.safetensors`` file as ``safe_open`` does, which reads tensors on demand.

    Raises InputError for a damaged file, also when the block reads a tensor.
    """
    check_readable(path)
    try:
        with safe_open(path, framework="pt") as stored:
            yield stored
    except InputError:
        raise
    except Exception as error:  # SafetensorError is one of several
        raise InputError(f"{path}: no safetensors ({first_line(error)}); fetch it again") from error


def check_shapes(
    weights: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    path: Path | str,
    complete: bool = False,
) -> None:
    """Raise InputError for weights that do not fit a model, or with ``complete`` lack a tensor."""
    problems = [
        f"{name} is {tuple(value.shape)}, the model's {tuple(expected[name].shape)}"
        for name, value in weights.items()
        if name in expected and value.shape != expected[name].shape
    ]
    problems += [f"{name} is not in the model" for name in weights if name not in expected]
    if complete:
        problems += [f"{name} is missing" for name in expected if name not in weights]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise InputError(
            f"{path}: does not fit the model: {'; '.join(problems[:3])}{more}; use the config and "
            "token list that the checkpoint was trained with"
        )
