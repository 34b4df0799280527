"""Whisper's encoder and decoder as torch modules with transformers' parameter names.

Weights and layers (arXiv 2212.04356); ``HFWhisperEncoder`` and ``WhisperMedusaDecoder`` compute
stem, embeddings and masks. transformers' layers are bitwise equal, but slow to import.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import dropout, gelu, scaled_dot_product_attention

if TYPE_CHECKING:
    from transformers import WhisperConfig


class WhisperAttention(torch.nn.Module):
    """Multi-head attention; keys have no bias."""

    def __init__(self, size: int, num_heads: int, dropout_rate: float):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout_rate
        self.k_proj = torch.nn.Linear(size, size, bias=False)
        self.v_proj, self.q_proj, self.out_proj = (torch.nn.Linear(size, size) for _ in range(3))

    def forward(
        self, hidden: torch.Tensor, encoder_out: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Attend from (B, T, D) to encoder output (B, S, D); ``mask`` is additive, (B, 1, T, S)."""
        return self.attend(*self.project(hidden, encoder_out), mask)

    def project(
        self, hidden: torch.Tensor, encoder_out: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return scaled queries (B, heads, T, size), keys and values (B, heads, S, size)."""
        head_size = hidden.size(-1) // self.num_heads
        queries = self.q_proj(hidden) * head_size**-0.5  # before the product, as in transformers
        queries, keys, values = (
            part.unflatten(-1, (self.num_heads, head_size)).transpose(1, 2).contiguous()
            for part in (queries, self.k_proj(encoder_out), self.v_proj(encoder_out))
        )
        return queries, keys, values

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the attention's output (B, T, D) for the results of ``project``."""
        rate = self.dropout if self.training else 0.0
        attended = scaled_dot_product_attention(queries, keys, values, mask, rate, scale=1.0)
        return self.out_proj(attended.transpose(1, 2).flatten(2))


class WhisperLayer(torch.nn.Module):
    """A layer of the encoder, or with ``cross_attention`` of the decoder."""

    def __init__(
        self, size: int, num_heads: int, inner_size: int, dropout_rate: float, cross_attention: bool
    ):
        super().__init__()
        self.dropout = dropout_rate
        self.self_attn = WhisperAttention(size, num_heads, dropout_rate)
        self.self_attn_layer_norm = torch.nn.LayerNorm(size)
        if cross_attention:
            self.encoder_attn = WhisperAttention(size, num_heads, dropout_rate)
            self.encoder_attn_layer_norm = torch.nn.LayerNorm(size)
        self.fc1 = torch.nn.Linear(size, inner_size)
        self.fc2 = torch.nn.Linear(inner_size, size)
        self.final_layer_norm = torch.nn.LayerNorm(size)

    def forward(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor | None,
        encoder_out: torch.Tensor | None = None,
        encoder_out_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute (B, T, D) from (B, T, D); decoder layers attend to encoder output (B, S, D)."""
        if encoder_out is not None:
            return self.decode(hidden, mask, encoder_out, encoder_out_mask)[0]
        hidden = self._feed_forward(self._attend_self(hidden, mask))
        if hidden.dtype == torch.float16:  # the encoder's can overflow
            limit = torch.finfo(hidden.dtype).max - 1000
            hidden = hidden.clamp(min=-limit, max=limit)
        return hidden

    def decode(
        self,
        hidden: torch.Tensor,
        mask: torch.Tensor | None,
        encoder_out: torch.Tensor,
        encoder_out_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compute a decoder layer; return its output, and queries and keys of cross-attention."""
        hidden, attention = self._attend_self(hidden, mask), self.encoder_attn
        normed = self.encoder_attn_layer_norm(hidden)
        queries, keys, values = attention.project(normed, encoder_out)
        attended = attention.attend(queries, keys, values, encoder_out_mask)
        return self._feed_forward(hidden + self._drop(attended)), queries, keys

    def _attend_self(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        normed = self.self_attn_layer_norm(hidden)
        return hidden + self._drop(self.self_attn(normed, normed, mask))

    def _feed_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = self._drop(gelu(self.fc1(self.final_layer_norm(hidden))))
        return hidden + self._drop(self.fc2(inner))

    def _drop(self, hidden: torch.Tensor) -> torch.Tensor:
        return dropout(hidden, p=self.dropout, training=self.training)


class WhisperEncoder(torch.nn.Module):
    """Weights of the encoder; positions are fixed sinusoids."""

    def __init__(self, config: WhisperConfig):
        super().__init__()
        self.config, size = config, config.d_model
        self.conv1 = torch.nn.Conv1d(config.num_mel_bins, size, kernel_size=3, padding=1)
        self.conv2 = torch.nn.Conv1d(size, size, kernel_size=3, stride=2, padding=1)
        self.embed_positions = torch.nn.Embedding(config.max_source_positions, size)
        self.embed_positions.requires_grad_(False)
        sizes = size, config.encoder_attention_heads, config.encoder_ffn_dim, config.dropout
        layers = (WhisperLayer(*sizes, False) for _ in range(config.encoder_layers))
        self.layers = torch.nn.ModuleList(layers)
        self.layer_norm = torch.nn.LayerNorm(size)
        self.apply(_initialize)
        with torch.no_grad():
            self.embed_positions.weight.copy_(sinusoids(config.max_source_positions, size))


class WhisperDecoder(torch.nn.Module):
    """Weights of the decoder; the output projection is ``embed_tokens``."""

    def __init__(self, config: WhisperConfig):
        super().__init__()
        self.config, size = config, config.d_model
        self.embed_scale = math.sqrt(size) if config.scale_embedding else 1.0
        self.embed_tokens = torch.nn.Embedding(config.vocab_size, size)
        self.embed_positions = torch.nn.Embedding(config.max_target_positions, size)
        layers = (decoder_layer(config) for _ in range(config.decoder_layers))
        self.layers = torch.nn.ModuleList(layers)
        self.layer_norm = torch.nn.LayerNorm(size)
        self.apply(_initialize)


def decoder_layer(config: WhisperConfig) -> WhisperLayer:
    sizes = config.d_model, config.decoder_attention_heads, config.decoder_ffn_dim, config.dropout
    return WhisperLayer(*sizes, True)


def sinusoids(length: int, size: int) -> torch.Tensor:
    """Return the encoder's positions (length, size): half sines, half cosines."""
    step = math.log(10000) / (size // 2 - 1)
    frequencies = torch.exp(-step * torch.arange(size // 2))
    angles = torch.arange(length)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def _initialize(module: torch.nn.Module) -> None:
    """Draw weights as transformers does: standard deviation 0.02, zero biases."""
    if isinstance(module, torch.nn.Linear | torch.nn.Conv1d | torch.nn.Embedding):
        torch.nn.init.normal_(module.weight, std=0.02)
        if getattr(module, "bias", None) is not None:
            torch.nn.init.zeros_(module.bias)
