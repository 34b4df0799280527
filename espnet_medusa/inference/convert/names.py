"""Tensor names of each format; "our" names are those of an ESPnet experiment."""

import re
from collections.abc import Callable, Iterable

ENCODER, DECODER = "encoder.whisper.", "decoder.whisper."
HEADS, BLOCK = "decoder.heads.", "decoder.heads.block."
MOMENTS = "decoder.heads.moments"  # of attending heads
ORIGINAL_LAYER, COUNTS = "decoder.original_last_layer.", "decoder.token_counts"
HALVES = {ENCODER: "model.encoder.", DECODER: "model.decoder."}
RESIDUAL = re.compile(r"decoder\.heads\.(?:base|heads\.(\d+))\.layers\.(\d+)\.(weight|bias)")

Rename = Callable[[str], str | None]


def hugging_face_name(name: str) -> str | None:
    """Return the name in ``WhisperForConditionalGeneration``, or None if it has no such tensor."""
    for ours, theirs in HALVES.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return None


def aiola_name(name: str, first_head: int) -> str | None:
    """Return the name in aiola's ``WhisperMedusaModel``, or None if it has no such tensor.

    ``first_head`` is aiola's number of our first head: 1 if its head 0 is the base head, else 0.
    """
    whisper = hugging_face_name(name)
    if whisper is not None:
        return f"whisper_model.{whisper}"
    for ours, theirs in ((BLOCK, "medusa_block."), (ORIGINAL_LAYER, "whisper_layer.")):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    residual = RESIDUAL.fullmatch(name)
    if residual is None:
        return None
    head, layer, kind = residual.groups()
    number = 0 if head is None else int(head) + first_head
    return f"medusa_heads.{number}.{layer}.linear.{kind}"


def renamed(names: Iterable[str], rename: Rename) -> dict[str, str]:
    """Map a format's names to ours, without tensors that the format lacks."""
    pairs = ((rename(name), name) for name in names)
    return {theirs: ours for theirs, ours in pairs if theirs is not None}
