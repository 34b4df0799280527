"""Medusa's heads: residual layers each.

Medusa-Linear and Medusa-Block of Whisper-Medusa (Segal-Feldman et al., arXiv 2409.15869, section
3), in the form that aiola-lab/whisper-medusa trains.
"""

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.model.heads.base import HeadOptions, Heads, Trunk


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

    @property
    def trained(self) -> bool:
        """Whether any weight has left its start at zero."""
        return any(bool(torch.any(parameter != 0)) for parameter in self.parameters())


class LinearHeads(Heads):
    """Medusa-Linear: residual layers per head on the decoder's last hidden state."""

    has_block = False

    def __init__(self, trunk: Trunk, options: HeadOptions):
        if options.own_block not in (None, self.has_block):
            raise InputError(
                f"decoder_conf.heads_conf.own_block: {options.own_block} only suits heads: "
                "recurrent; leave it out, or use heads: linear (no block) or block"
            )
        super().__init__(trunk, options, self.has_block)
        sizes = trunk.hidden_size, options.num_layers
        self.heads = torch.nn.ModuleList(ResidualLayers(*sizes) for _ in range(options.num_heads))
        self.base = ResidualLayers(*sizes) if options.base_head else None

    @property
    def trained(self) -> bool:
        return any(head.trained for head in self.heads)

    def forward(self, head_input: torch.Tensor) -> torch.Tensor:
        """(..., D) to (K, ..., D)."""
        return torch.stack([head(head_input) for head in self.heads])

    def unroll(self, head_input, labels, embed, cross_keys_values=None):
        for step, head in enumerate(self.heads, start=1):
            yield head(head_input[:, : max(labels.size(1) - step, 0)])


class BlockHeads(LinearHeads):
    """Medusa-Block: one more decoder layer, shared by the heads, starts as a copy of the last."""

    has_block = True
