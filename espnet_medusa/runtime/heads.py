"""Heads with weights laid out for drafting."""

from collections.abc import Callable

import torch

from espnet_medusa.model.heads import (
    Heads,
    LatentHeads,
    LinearHeads,
    ProjectionHeads,
    RecurrentHeads,
)
from espnet_medusa.model.heads.residual import ResidualLayers
from espnet_medusa.runtime.linear import (
    SILU,
    Projection,
    pack_linear,
    pack_module,
    pack_norm,
    pack_projection,
)
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


class PackedLatentHeads:
    """Latent heads: all matrices are one product.

    Args:
        heads: Their weights; copied.
        precision: What to compute in.
    """

    def __init__(self, heads: LatentHeads, precision: Precision):
        self.num_heads = heads.num_heads
        weight = torch.cat([head.weight for head in heads.heads])
        self.product = pack_linear(weight, None, precision)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, D) to (R, K, D)."""
        return self.product(hidden).unflatten(-1, (self.num_heads, -1))


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


Tables = Callable[[torch.Tensor], torch.Tensor]


def pack_base(heads: Heads | None, precision: Precision) -> Tables | None:
    """What the base head has before the vocabulary projection, (R, D) to (R, D); None: nothing."""
    base = None if heads is None else heads.base
    if isinstance(base, torch.nn.Linear):
        return pack_module(base, precision)
    return None if base is None else PackedResidualLayers(base, precision)


def pack_tables(
    heads: Heads, projection: Projection, vocabulary: torch.Tensor | None, precision: Precision
) -> Tables:
    """Logits of all parallel heads at once: (R, D) to (R, K, V').

    Args:
        heads: Linear, block, latent or projection heads.
        projection: The shared one, of V' tokens.
        vocabulary: (V',) these; None: all.
        precision: What to compute in.
    """
    if isinstance(heads, ProjectionHeads):
        weight = heads.weight.detach()
        if vocabulary is not None:
            weight = weight[:, vocabulary]
        own = pack_projection(weight.flatten(0, 1), precision)
        return lambda hidden: own(hidden).unflatten(-1, (heads.num_heads, -1))
    kind = PackedLatentHeads if isinstance(heads, LatentHeads) else PackedParallelHeads
    packed = kind(heads, precision)
    return lambda hidden: projection(packed(hidden).flatten(0, 1)).unflatten(
        0, (-1, heads.num_heads)
    )
