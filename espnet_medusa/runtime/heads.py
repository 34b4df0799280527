"""Medusa heads with weights laid out for drafting."""

import torch

from espnet_medusa.heads import LinearHeads, RecurrentHeads, ResidualLayers
from espnet_medusa.runtime.linear import SILU, pack_linear, pack_module, pack_norm
from espnet_medusa.runtime.precision import Precision


class PackedResidualLayers:
    """``x + SiLU(W x + b)``, several times.

    Args:
        module: Its weights; copied.
        precision: What to compute in.
    """

    def __init__(self, module: ResidualLayers, precision: Precision):
        self.layers = [pack_module(layer, precision, SILU) for layer in module.layers]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, D) to (R, D)."""
        for layer in self.layers:
            hidden = layer(hidden, hidden)
        return hidden


class PackedParallelHeads:
    """Linear or block heads: the first layers of all heads are one matrix product.

    Args:
        heads: Their weights; copied.
        precision: What to compute in.
    """

    def __init__(self, heads: LinearHeads, precision: Precision):
        stacks = [head.layers for head in heads.heads]
        self.num_heads = len(stacks)
        self.first = pack_linear(
            torch.cat([stack[0].weight for stack in stacks]),
            torch.cat([stack[0].bias for stack in stacks]),
            precision,
            SILU,
        )
        self.later = [
            [pack_module(layer, precision, SILU) for layer in layers]
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
        precision: What to compute in.
    """

    def __init__(self, heads: RecurrentHeads, precision: Precision):
        self.norm = pack_norm(heads.cell.norm, precision)
        self.inner = pack_module(heads.cell.inner, precision, SILU)
        self.outer = pack_module(heads.cell.outer, precision)
        self.output = PackedResidualLayers(heads.output, precision)

    def advance(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """One token further: (R, D) and its embeddings (R, D) to (R, D)."""
        return self.outer(self.inner(torch.cat([self.norm(states), embedded], dim=-1)), states)
