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
    encoder_out, (lengths,) = encoded
    ids = torch.tensor([[*tokens]], device=encoder_out.device)
    (hidden,), of_layers = decoder.cross_attention(*encoded, ids)
    rows = repeat_rows(torch.arange(encoder_out.size(1), device=encoder_out.device), lengths)
    attention = []
    for layer, head in decoder.alignment_heads or upper:
        queries, keys = (part[0, head].float() for part in of_layers[layer])
        attention.append((queries @ keys[rows[:frames]].t()).softmax(dim=-1))
    return torch.stack(attention), decoder.logits(hidden)
