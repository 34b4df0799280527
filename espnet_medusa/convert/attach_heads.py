"""Heads for a Whisper that has none: those that come with the package, or a folder's."""

from dataclasses import replace
from pathlib import Path

import torch

from espnet_medusa.convert.checkpoint import Architecture, Checkpoint
from espnet_medusa.convert.heads_card import sizes_of
from espnet_medusa.convert.names import HEADS
from espnet_medusa.convert.packed_heads import CARD, PackedHeads, head_tensors, open_heads
from espnet_medusa.errors import InputError
from espnet_medusa.model.heads import NO_HEADS
from espnet_medusa.whisper.fingerprint import fingerprint

AUTO = "auto"
SHIPPED = Path(__file__).parents[1] / "pretrained_heads"  # a folder for each Whisper


def attach_heads(
    checkpoint: Checkpoint, heads: str = AUTO, shipped: Path = SHIPPED
) -> tuple[Checkpoint, str | None]:
    """A Whisper with heads that draft for it; its text stays as it is.

    Args:
        checkpoint: The Whisper.
        heads: ``auto``: those trained on exactly these weights, if there are any in ``shipped``;
            ``none``; or a folder as ``stages pack_heads`` writes it, for any Whisper that it fits.
        shipped: Folder of folders.

    Returns:
        With heads or as it was, and a line that says which and why, or None.

    Raises:
        InputError: It has heads already, or the folder's are damaged, do not fit, or change texts.
    """
    has_heads = checkpoint.architecture.heads != NO_HEADS
    if heads == NO_HEADS or (heads == AUTO and has_heads):
        return checkpoint, None
    if has_heads:
        raise InputError(
            f"--heads {heads}: {checkpoint.name} has {checkpoint.architecture.heads} heads of its "
            f"own; allowed: {AUTO}, {NO_HEADS}"
        )
    if heads == AUTO:
        return _attach_shipped(checkpoint, shipped)
    packed = open_heads(Path(heads).expanduser())
    attached, said = _attach(checkpoint, packed)
    if packed.card.fingerprint != fingerprint(checkpoint.weights):
        said += "; trained on other weights: fewer drafts may be accepted, the text stays the same"
    return attached, said


def _attach_shipped(checkpoint: Checkpoint, shipped: Path) -> tuple[Checkpoint, str | None]:
    whisper = checkpoint.architecture.whisper
    found = [open_heads(path.parent) for path in sorted(shipped.glob(f"*/{CARD}"))]
    found = [packed for packed in found if packed.card.whisper == sizes_of(whisper)]
    if not found:  # nothing to compare with
        return checkpoint, None
    own = fingerprint(checkpoint.weights)
    for packed in found:
        if packed.card.fingerprint == own:
            return _attach(checkpoint, packed)
    names = ", ".join(f"{packed.card.base_model} ({packed.folder})" for packed in found)
    return checkpoint, (
        f"no heads: {checkpoint.name} has other weights than those that heads were trained on: "
        f"{names}; --heads FOLDER attaches them all the same"
    )


def _attach(checkpoint: Checkpoint, packed: PackedHeads) -> tuple[Checkpoint, str]:
    architecture = packed.architecture(checkpoint.architecture.whisper)
    weights = packed.weights(architecture)
    check_keeps_text(architecture, weights, str(packed.folder))
    attached = replace(
        checkpoint,
        architecture=architecture,
        weights={**checkpoint.weights, **weights},
        draft_conf=packed.card.draft_conf,
    )
    return attached, f"{packed.folder.name}: {packed.card}"


@torch.no_grad()
def check_keeps_text(
    architecture: Architecture, weights: dict[str, torch.Tensor], where: str
) -> None:
    """Refuse heads whose base head computes other logits than Whisper without heads.

    Args:
        architecture: With heads.
        weights: Theirs among others, by our names.
        where: For the message.

    Raises:
        InputError: They do.
    """
    heads = architecture.build_heads()
    own = head_tensors(weights).items()
    heads.load_state_dict({name.removeprefix(HEADS): value for name, value in own}, assign=True)
    if heads.base is None:
        return
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(16, architecture.whisper.d_model, generator=generator)
    if not torch.equal(heads.base(hidden), hidden):
        raise InputError(
            f"{where}: their base head has weights of its own, which change Whisper's text; "
            "allowed: heads that leave it as it is (heads_conf.base_head: false)"
        )
