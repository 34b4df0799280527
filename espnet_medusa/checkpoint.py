"""Checkpoints that are read without running code in them."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from espnet_medusa.errors import InputError


def load_weights(path: Path, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Read a state dict: ``.pth`` with ``weights_only``, or ``.safetensors``.

    Raises:
        InputError: The file is missing, is no checkpoint, or holds more than weights.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint; train the model first, or mend the path")
    if path.suffix == ".safetensors":
        return load_file(path, device=device)
    try:
        weights = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{path}: not a checkpoint of weights alone ({reason}); save the state dict, or "
            "convert it to safetensors where you trust it"
        ) from error
    if isinstance(weights, Mapping) and isinstance(weights.get("model"), Mapping):
        weights = weights["model"]  # ESPnet's checkpoint.pth
    if not isinstance(weights, Mapping) or not all(
        isinstance(value, torch.Tensor) for value in weights.values()
    ):
        raise InputError(f"{path}: holds no state dict (names to tensors)")
    return dict(weights)


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
