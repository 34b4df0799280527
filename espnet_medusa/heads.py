"""Medusa heads: several next tokens from one hidden state.

Medusa-Linear and Medusa-Block of Whisper-Medusa (Segal-Feldman et al., arXiv 2409.15869, section
3), in the form that aiola-lab/whisper-medusa trains.
"""

import copy
from dataclasses import dataclass

import torch

from espnet_medusa.options import check_at_least, check_choice


@dataclass(frozen=True)
class HeadOptions:
    """``heads_conf`` of ``decoder: whisper_medusa``."""

    num_heads: int = 4  # K, tokens drafted behind the next one
    num_layers: int = 1  # residual layers per head
    base_head: bool = False  # own residual layers for the base head too, as aiola's ``base_head``


class ResidualLayers(torch.nn.Module):
    """``x + SiLU(W x + b)``, ``num_layers`` times; W starts at zero.

    Args:
        hidden_size: D.
        num_layers: How many.
    """

    def __init__(self, hidden_size: int, num_layers: int):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(hidden_size, hidden_size) for _ in range(num_layers)
        )
        for layer in self.layers:
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(..., D) to (..., D)."""
        for layer in self.layers:
            hidden = hidden + torch.nn.functional.silu(layer(hidden))
        return hidden


class LinearHeads(torch.nn.Module):
    """Medusa-Linear: residual layers per head on the decoder's last hidden state.

    Args:
        hidden_size: D.
        options: Sizes.
        last_layer: The decoder's last layer; only ``BlockHeads`` needs it.
    """

    def __init__(
        self, hidden_size: int, options: HeadOptions, last_layer: torch.nn.Module | None = None
    ):
        super().__init__()
        self.block: torch.nn.Module | None = None
        self.heads = torch.nn.ModuleList(
            ResidualLayers(hidden_size, options.num_layers) for _ in range(options.num_heads)
        )
        self.base = ResidualLayers(hidden_size, options.num_layers) if options.base_head else None

    @property
    def num_heads(self) -> int:
        """K."""
        return len(self.heads)

    def forward(self, head_input: torch.Tensor) -> torch.Tensor:
        """(..., D) to (K, ..., D)."""
        return torch.stack([head(head_input) for head in self.heads])


class BlockHeads(LinearHeads):
    """Medusa-Block: one more decoder layer, shared by the heads, starts as a copy of the last."""

    def __init__(self, hidden_size: int, options: HeadOptions, last_layer: torch.nn.Module):
        super().__init__(hidden_size, options)
        self.block = copy.deepcopy(last_layer)


HEAD_TYPES = {"linear": LinearHeads, "block": BlockHeads}
NO_HEADS = "none"


def build_heads(
    kind: str, hidden_size: int, options: HeadOptions, last_layer: torch.nn.Module
) -> torch.nn.Module | None:
    """Make heads by their config name; None for ``none`` or K = 0.

    Raises:
        InputError: An unknown kind or a size out of range; says what is allowed.
    """
    check_choice(kind, [NO_HEADS, *HEAD_TYPES], "decoder_conf.heads")
    check_at_least(options.num_heads, 0, "decoder_conf.heads_conf.num_heads")
    check_at_least(options.num_layers, 1, "decoder_conf.heads_conf.num_layers")
    if kind == NO_HEADS or options.num_heads == 0:
        return None
    return HEAD_TYPES[kind](hidden_size, options, last_layer)
