"""Numbers of parameters, counted in a checkpoint without running code in it."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.files.checkpoint import load_weights, open_safetensors

HEADS = "decoder.heads."
# Kept for training only: the teacher of a fine-tuned last layer.
TEACHER = "decoder.original_last_layer."
# One tensor where embeddings are tied; ESPnet's averages make two of it.
TIED = ("decoder.llama.lm_head.weight", "decoder.llama.model.embed_tokens.weight")
FLOATING = {"F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3"}


@dataclass(frozen=True)
class Parameters:
    """Parameters of a system.

    Attributes:
        total: All that decoding needs.
        heads: Those of the Medusa heads among them, with a decoder block of their own.
        draft: Those of a second model that drafts, among them.
    """

    total: int
    heads: int = 0
    draft: int = 0


def count_parameters(path: Path, draft_model: Path | None = None) -> Parameters:
    """Count floating-point values; weights that share their memory count once.

    Args:
        path: ``.pth`` or ``.safetensors``.
        draft_model: The same, of the model that drafts.

    Raises:
        InputError: A checkpoint is missing or holds more than weights.
    """
    sizes = _sizes(path)
    draft = sum(_sizes(draft_model).values()) if draft_model else 0
    kept = {name: size for name, size in sizes.items() if not name.startswith(TEACHER)}
    heads = sum(size for name, size in kept.items() if name.startswith(HEADS))
    return Parameters(sum(kept.values()) + draft, heads, draft)


def _sizes(path: Path) -> dict[str, int]:
    """Values by name, of the tensors that hold floating-point numbers."""
    if path.suffix == ".safetensors":
        return _safetensors_sizes(path)
    sizes, seen, weights = {}, set(), load_weights(path)
    if all(name in weights for name in TIED) and torch.equal(*(weights[name] for name in TIED)):
        del weights[TIED[0]]
    for name, tensor in weights.items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
        if tensor.is_floating_point() and place not in seen:
            seen.add(place)
            sizes[name] = tensor.numel()
    return sizes


def _safetensors_sizes(path: Path) -> dict[str, int]:
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint; train the model first, or mend the path")
    sizes = {}
    with open_safetensors(path) as file:
        for name in file.keys():  # noqa: SIM118 (no dictionary)
            entry = file.get_slice(name)
            if entry.get_dtype() in FLOATING:
                sizes[name] = math.prod(entry.get_shape())
    return sizes
