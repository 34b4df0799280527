"""Checkpoints that are read without running code in them, and take no more than they hold."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from espnet_medusa.errors import InputError
from espnet_medusa.files.torch_file import check_torch_file

MAX_REUSE = 3  # times the file's size, which tensors that share values make of it


def load_weights(path: Path, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Read a state dict: ``.pth`` with ``weights_only``, or ``.safetensors``.

    Raises:
        InputError: The file is missing, is no checkpoint, or holds more than weights.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint; train the model first, or mend the path")
    if path.suffix == ".safetensors":
        with open_safetensors(path, device) as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    weights = load_pickled(path, device)
    if isinstance(weights, Mapping) and isinstance(weights.get("model"), Mapping):
        weights = weights["model"]  # ESPnet's checkpoint.pth
    return check_state_dict(weights, path)


def load_pickled(path: Path, device: str = "cpu", mmap: bool = False) -> Any:
    """Read what ``torch.save`` wrote, of plain values and tensors alone.

    Args:
        path: ``.pt``, ``.pth`` or ``.bin``.
        device: For its tensors.
        mmap: Whether the file is mapped rather than read.

    Raises:
        InputError: It is damaged, compressed, or would run code.
    """
    try:
        check_torch_file(path)
        return torch.load(path, map_location=device, weights_only=True, mmap=mmap)
    except Exception as error:  # of a damaged file torch raises errors of many kinds
        raise InputError(
            f"{path}: not a checkpoint of weights alone ({_reason(error)}); fetch it again, save "
            "the state dict, or convert it to safetensors where you trust it"
        ) from error


def check_state_dict(weights: Any, path: Path) -> dict[str, torch.Tensor]:
    """Refuse what is no state dict, and tensors that repeat a few values to any size.

    Raises:
        InputError: Of the file at ``path``.
    """
    if not isinstance(weights, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in weights.items()
    ):
        raise InputError(
            f"{path}: holds no state dict (names to tensors); save the model's state_dict()"
        )
    size, held = path.stat().st_size, sum(value.nbytes for value in weights.values())
    if held > MAX_REUSE * size:
        raise InputError(f"{path}: {held} bytes of tensors in {size}; fetch it again")
    return dict(weights)


@contextmanager
def open_safetensors(path: Path, device: str = "cpu") -> Iterator[Any]:
    """Open a ``.safetensors`` file as ``safe_open`` does; no tensor is read before it is asked for.

    Raises:
        InputError: It is damaged: now, or when a tensor is read.
    """
    try:
        with safe_open(path, framework="pt", device=device) as stored:
            yield stored
    except InputError:
        raise
    except Exception as error:  # SafetensorError is one of several
        raise InputError(f"{path}: no safetensors ({_reason(error)}); fetch it again") from error


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def check_shapes(
    weights: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    path: Path | str,
    complete: bool = False,
) -> None:
    """Refuse weights that do not fit a model.

    Args:
        weights: What the checkpoint holds.
        expected: The model's state dict.
        path: For the message.
        complete: Whether every name of the model must be there.

    Raises:
        InputError: Names the first differences and what to do.
    """
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
