"""A folder of heads: the card ``README.md`` and ``heads.safetensors``.

The file contains the tensors of ``decoder.heads`` by an experiment's names, in float16, and counts
of their training tokens: ``token_ids`` (N,) int32, ascending, and ``token_counts`` (N,) int64.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from transformers import WhisperConfig

from espnet_medusa.data.errors import InputError, first_line
from espnet_medusa.data.files.checkpoint import open_safetensors
from espnet_medusa.inference.convert.checkpoint import Architecture
from espnet_medusa.inference.convert.heads_card import CARD, HeadsCard, read_card
from espnet_medusa.inference.convert.names import COUNTS, HEADS
from espnet_medusa.networks.heads import HeadOptions

TENSORS = "heads.safetensors"
IDS, TIMES = "token_ids", "token_counts"
TYPES = {IDS: ("I32",), TIMES: ("I64",)}
FLOATS = ("F16", "BF16", "F32")
REMEDY = "give heads of a Whisper of this size, or download them again"


@dataclass(frozen=True)
class PackedHeads:
    """A folder of heads whose card was read."""

    folder: Path  # as given
    card: HeadsCard  # valid, but not yet compared with a Whisper

    def architecture(self, whisper: WhisperConfig) -> Architecture:
        """Return the architecture with these heads; raise InputError if they cannot be built."""
        try:
            options = HeadOptions(**self.card.heads_conf)
            architecture = Architecture(whisper, self.card.heads, options)
            architecture.tensors()
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{self.folder / CARD}: heads_conf: {first_line(error)}") from error
        return architecture

    def weights(self, architecture: Architecture) -> dict[str, torch.Tensor]:
        """Read the heads in float32, and counts (V,); raise InputError if the file is bad."""
        path = self.folder / TENSORS
        expected = head_tensors(architecture.tensors())
        stored = _read(path, expected)
        ids, times = stored.pop(IDS).long(), stored.pop(TIMES)
        size = architecture.whisper.vocab_size
        if ids.shape != times.shape or (ids.diff() < 1).any() or (times < 1).any():
            raise InputError(
                f"{path}: {IDS}, {TIMES}: allowed: ascending ids, counts above 0; download it again"
            )
        if len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < size:
            raise InputError(f"{path}: {IDS}: {int(ids[-1])}; allowed: 0 to {size - 1}")
        if not all(bool(value.isfinite().all()) for value in stored.values()):
            raise InputError(f"{path}: a weight is not finite; download it again")
        counts = torch.zeros(size, dtype=torch.long).index_copy(0, ids, times)
        return {name: value.float() for name, value in stored.items()} | {COUNTS: counts}


def open_heads(folder: Path) -> PackedHeads:
    """Read the card of a folder of heads; raise InputError if a file is missing or invalid."""
    for name in (CARD, TENSORS):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder}: no heads: {name} is missing; give a folder that python -m "
                "espnet_medusa.bin.stage pack_heads wrote"
            )
    return PackedHeads(folder, read_card(folder))


def head_tensors(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights.items() if name.startswith(HEADS)}


def save_heads(folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Write ``heads.safetensors`` of an experiment's weights; token counts may be missing."""
    counts = weights.get(COUNTS, torch.zeros(0, dtype=torch.long))
    ids = counts.nonzero().flatten()
    heads = {name: value.half().contiguous() for name, value in head_tensors(weights).items()}
    stored = save(heads | {IDS: ids.int(), TIMES: counts[ids].contiguous()})
    (folder / TENSORS).write_bytes(stored)  # save_file lets only the owner read it


def _read(path: Path, expected: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors by name; names, types and shapes are checked before any is read."""
    with open_safetensors(path) as stored:
        names = {*stored.keys()}
        different = sorted(names ^ {IDS, TIMES, *expected})
        if different:
            what = "does not belong to these heads" if different[0] in names else "is missing"
            raise InputError(f"{path}: {different[0]} {what} ({len(different)} in total); {REMEDY}")
        for name in sorted(names):
            part, counts = stored.get_slice(name), name not in expected
            kind, shape = part.get_dtype(), tuple(part.get_shape())
            if kind not in TYPES.get(name, FLOATS):
                allowed = ", ".join(TYPES.get(name, FLOATS))
                raise InputError(f"{path}: {name}: {kind}; allowed: {allowed}; {REMEDY}")
            if len(shape) != 1 if counts else shape != expected[name].shape:
                fits = "one dimension" if counts else tuple(expected[name].shape)
                raise InputError(f"{path}: {name} is {shape}; allowed: {fits}; {REMEDY}")
        return {name: stored.get_tensor(name) for name in sorted(names)}
