"""Attach the package's heads, or those of a folder, to a Whisper without heads."""

import os
from dataclasses import replace
from pathlib import Path

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.search_options import BEAM, GREEDY
from espnet_medusa.inference.convert.checkpoint import Architecture, Checkpoint
from espnet_medusa.inference.convert.heads_card import sizes_of
from espnet_medusa.inference.convert.names import HEADS
from espnet_medusa.inference.convert.packed_heads import CARD, PackedHeads, head_tensors, open_heads
from espnet_medusa.networks.heads import NO_HEADS
from espnet_medusa.networks.whisper.fingerprint import fingerprint

AUTO = "auto"
SHIPPED = Path(__file__).parents[2] / "pretrained_heads"  # in this package, a folder per Whisper


def attach_heads(
    checkpoint: Checkpoint, heads: str = AUTO, shipped: Path = SHIPPED
) -> tuple[Checkpoint, str | None]:
    """Attach heads to a Whisper; its text does not change.

    Return the checkpoint, and a message or None: the attached heads, or why none were attached.
    With a folder, raise InputError if its heads do not fit, or the Whisper has heads already.

    Args:
        heads: ``auto``: heads in ``shipped`` that were trained on exactly these weights; ``none``:
            heads are removed; or a folder written by ``stages pack_heads``, for any Whisper of the
            same sizes.
    """
    if heads == NO_HEADS:
        return checkpoint.without_heads(), None
    has_heads = checkpoint.architecture.heads != NO_HEADS
    if heads == AUTO and has_heads:
        return checkpoint, None
    if has_heads:
        raise InputError(
            f"--heads {heads}: {checkpoint.name} has {checkpoint.architecture.heads} heads of its "
            f"own; allowed: {AUTO}, {NO_HEADS}"
        )
    if heads == AUTO:
        return _attach_shipped(checkpoint, shipped)
    packed = open_heads(Path(os.path.expanduser(heads)))
    attached, message = _attach(checkpoint, packed)
    if packed.card.fingerprint != fingerprint(checkpoint.weights):
        message += "; trained on other weights: fewer drafts may be accepted, the text is the same"
    return attached, message


def _attach_shipped(checkpoint: Checkpoint, shipped: Path) -> tuple[Checkpoint, str | None]:
    whisper = checkpoint.architecture.whisper
    candidates = [open_heads(path.parent) for path in sorted(shipped.glob(f"*/{CARD}"))]
    candidates = [packed for packed in candidates if packed.card.whisper == sizes_of(whisper)]
    if not candidates:
        return checkpoint, None
    weights = fingerprint(checkpoint.weights)
    for packed in candidates:
        if packed.card.fingerprint == weights:
            return _attach(checkpoint, packed)
    names = ", ".join(f"{packed.card.base_model} ({packed.folder})" for packed in candidates)
    return checkpoint, (
        f"no heads: {checkpoint.name} has other weights than the Whisper of the package's heads: "
        f"{names}; --heads FOLDER attaches them anyway"
    )


def _attach(checkpoint: Checkpoint, packed: PackedHeads) -> tuple[Checkpoint, str]:
    architecture = packed.architecture(checkpoint.architecture.whisper)
    weights = packed.weights(architecture)
    check_keeps_text(architecture, weights, str(packed.folder))
    draft_conf = packed.card.draft_conf
    if languages := packed.card.language:
        draft_conf = {
            search: {**draft_conf.get(search, {}), "languages": languages}
            for search in (GREEDY, BEAM)
        }
    weights = {**checkpoint.weights, **weights}
    parts = {"architecture": architecture, "weights": weights, "draft_conf": draft_conf}
    return replace(checkpoint, **parts), f"{packed.folder.name}: {packed.card}"


@torch.no_grad()
def check_keeps_text(
    architecture: Architecture, weights: dict[str, torch.Tensor], where: str
) -> None:
    """Raise InputError if the heads' base logits are not those of Whisper without heads."""
    heads = architecture.build_heads()
    tensors = {name.removeprefix(HEADS): value for name, value in head_tensors(weights).items()}
    heads.load_state_dict(tensors, assign=True)
    if heads.base is None:
        return
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(16, architecture.whisper.d_model, generator=generator)
    if not torch.equal(heads.base(hidden), hidden):
        raise InputError(
            f"{where}: their base head has residual layers, which change Whisper's text; "
            "allowed: heads_conf.base_head: false"
        )
