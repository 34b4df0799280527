"""Cross-attention of Whisper's alignment heads, in one teacher-forced pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from espnet_medusa.data.encoder_rows import repeat_rows
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder


@torch.no_grad()
def align_tokens(
    decoder: WhisperMedusaDecoder,
    encoded: tuple[torch.Tensor, torch.Tensor],
    tokens: Sequence[int],
    frames: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention (H, T, S) of the alignment heads, and logits (T, V) of the base head.

    The attention is to the first S = ``frames`` frames; each row sums to 1. Alignment heads are
    those of ``DecoderOptions``, or by default all heads of the upper half of layers.

    Args:
        encoded: (1, S', D) encoder output, and its length (1,) or the frames of its rows (1, S').
        tokens: T, including prompt and end symbol.
    """
    layers, num_heads = len(decoder.layers), decoder.whisper.config.decoder_attention_heads
    upper = [(layer, head) for layer in range(layers // 2, layers) for head in range(num_heads)]
    heads, projected = decoder.alignment_heads or upper, {}
    hooks = [
        getattr(decoder.layers[layer].encoder_attn, f"{part}_proj").register_forward_hook(
            lambda _, inputs, output, key=(layer, part): projected.__setitem__(key, output[0])
        )
        for layer in {layer for layer, _ in heads}
        for part in ("q", "k")
    ]
    ids = torch.tensor([[*tokens]], device=encoded[0].device)
    try:
        hidden = decoder.hidden_states(*encoded, ids).hidden[0]
    finally:
        for hook in hooks:
            hook.remove()
    size = hidden.size(1) // num_heads
    encoder_out, (lengths,) = encoded
    rows = repeat_rows(torch.arange(encoder_out.size(1), device=encoder_out.device), lengths)[
        :frames
    ]
    attention = []
    for layer, head in heads:
        columns = slice(head * size, (head + 1) * size)
        queries, keys = (projected[layer, part][:, columns].float() for part in ("q", "k"))
        attention.append((queries @ keys[rows].t() * size**-0.5).softmax(dim=-1))
    return torch.stack(attention), decoder.logits(hidden)
