"""What Whisper's decoder attends to behind each token of a text: one teacher-forced pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder

Head = tuple[int, int]  # layer, and head within it


class TokenAlignment(NamedTuple):
    """What the decoder says of a text of T tokens, its prompt included.

    Attributes:
        attention: (H, T, S) weights of the heads that align, each row's sum is 1.
        logits: (T, V) of the base head for the token that follows.
    """

    attention: torch.Tensor
    logits: torch.Tensor


def alignment_heads(decoder: WhisperMedusaDecoder) -> list[Head]:
    """Heads that follow the speech: those of the config, or all of the upper half of layers."""
    if decoder.alignment_heads:
        return [(layer, head) for layer, head in decoder.alignment_heads]
    layers, heads = len(decoder.layers), decoder.whisper.config.decoder_attention_heads
    return [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]


@torch.no_grad()
def align_tokens(
    decoder: WhisperMedusaDecoder, memory: torch.Tensor, tokens: Sequence[int], frames: int
) -> TokenAlignment:
    """Attention of the heads that align to the first S frames.

    Args:
        decoder: Trained.
        memory: (1, S', D) encoder output.
        tokens: T, prompt and end symbol included.
        frames: S.
    """
    heads, seen = alignment_heads(decoder), {}
    hooks = [
        getattr(decoder.layers[layer].encoder_attn, f"{part}_proj").register_forward_hook(
            lambda _, inputs, output, key=(layer, part): seen.__setitem__(key, output[0])
        )
        for layer in {layer for layer, _ in heads}
        for part in ("q", "k")
    ]
    lengths = torch.tensor([memory.size(1)], device=memory.device)
    ids = torch.tensor([[*tokens]], device=memory.device)
    try:
        hidden = decoder.hidden_states(memory, lengths, ids).hidden[0]
    finally:
        for hook in hooks:
            hook.remove()
    attention = [
        _attention(decoder, seen[layer, "q"], seen[layer, "k"], head, frames)
        for layer, head in heads
    ]
    return TokenAlignment(torch.stack(attention), decoder.logits(hidden))


def _attention(
    decoder: WhisperMedusaDecoder, queries: torch.Tensor, keys: torch.Tensor, head: int, frames: int
) -> torch.Tensor:
    """(T, S) of one head, from its layer's (T, D) and (S', D)."""
    size = queries.size(1) // decoder.whisper.config.decoder_attention_heads
    columns = slice(head * size, (head + 1) * size)
    scores = queries[:, columns].float() @ keys[:frames, columns].float().t()
    return (scores * size**-0.5).softmax(dim=-1)
