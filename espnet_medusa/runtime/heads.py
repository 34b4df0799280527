"""Medusa heads with weights laid out for drafting."""

import torch

from espnet_medusa.heads import LinearHeads, RecurrentHeads, ResidualLayers
from espnet_medusa.runtime.linear import SILU, Norm, pack_linear, pack_module


class PackedResidualLayers:
    """``x + SiLU(W x + b)``, several times.

    Args:
        module: Its weights; copied.
        dtype: To compute in.
    """

    def __init__(self, module: ResidualLayers, dtype: torch.dtype):
        self.layers = [pack_module(layer, dtype, SILU) for layer in module.layers]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, D) to (R, D)."""
        for layer in self.layers:
            hidden = layer(hidden, hidden)
        return hidden


class PackedParallelHeads:
    """Linear or block heads: the first layers of all heads are one matrix product.

    Args:
        heads: Their weights; copied.
        dtype: To compute in.
    """

    def __init__(self, heads: LinearHeads, dtype: torch.dtype):
        stacks = [head.layers for head in heads.heads]
        self.num_heads = len(stacks)
        self.first = pack_linear(
            torch.cat([stack[0].weight for stack in stacks]),
            torch.cat([stack[0].bias for stack in stacks]),
            dtype,
            SILU,
        )
        self.later = [
            [pack_module(layer, dtype, SILU) for layer in layers]
            for layers in zip(*(stack[1:] for stack in stacks), strict=True)
        ]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, D) to (R, K, D)."""
        states = self.first(hidden).unflatten(-1, (self.num_heads, -1)) + hidden[:, None]
        for layers in self.later:
            rows = [layer(row, row) for layer, row in zip(layers, states.unbind(1), strict=True)]
            states = torch.stack(rows, dim=1)
        return states


class PackedRecurrentHeads:
    """Recurrent heads.

    Args:
        heads: Their weights; copied.
        dtype: To compute in.
    """

    def __init__(self, heads: RecurrentHeads, dtype: torch.dtype):
        self.norm = Norm(heads.cell.norm, dtype)
        self.inner = pack_module(heads.cell.inner, dtype, SILU)
        self.outer = pack_module(heads.cell.outer, dtype)
        self.output = PackedResidualLayers(heads.output, dtype)

    def advance(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """One token further: (R, D) and its embeddings (R, D) to (R, D)."""
        return self.outer(self.inner(torch.cat([self.norm(states), embedded], dim=-1)), states)
