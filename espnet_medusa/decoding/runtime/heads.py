"""Medusa heads with packed weights, for drafting."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from espnet_medusa.decoding.runtime.layer import Packing, attend_encoder_out, join
from espnet_medusa.decoding.runtime.linear import (
    GELU,
    SILU,
    Linear,
    pack_linear,
    pack_module,
    pack_norm,
)
from espnet_medusa.decoding.runtime.precision import Precision
from espnet_medusa.decoding.tree.token_tree import upload
from espnet_medusa.networks.heads import (
    AttendingHeads,
    Heads,
    LatentHeads,
    LinearHeads,
    ProjectionHeads,
    RecurrentHeads,
)
from espnet_medusa.networks.heads.parallel import ResidualLayers


class PackedResidualLayers:
    """``x + SiLU(W x + b)``, once per layer."""

    def __init__(self, module: ResidualLayers, precision: Precision):
        self.layers = [pack_module(layer, precision, SILU) for layer in module.layers]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (R, D) to (R, D)."""
        for layer in self.layers:
            hidden = layer(hidden, hidden)
        return hidden


class PackedParallelHeads:
    """Linear or block heads; the first layers of all heads are one matrix product."""

    def __init__(self, heads: LinearHeads, precision: Precision):
        stacks = [head.layers for head in heads.heads]
        self.num_heads = len(stacks)
        self.first = pack_linear(*join(*(stack[0] for stack in stacks)), precision, SILU)
        self.later = [
            [pack_module(layer, precision, SILU) for layer in layers]
            for layers in zip(*(stack[1:] for stack in stacks), strict=True)
        ]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (R, D) to (R, K D)."""
        states = self.first(hidden).unflatten(-1, (self.num_heads, -1)) + hidden[:, None]
        for layers in self.later:
            rows = [layer(row, row) for layer, row in zip(layers, states.unbind(1), strict=True)]
            states = torch.stack(rows, dim=1)
        return states.flatten(1)


Tables = Callable[[torch.Tensor], torch.Tensor]


def pack_tables(
    heads: Heads, projection: Linear, vocabulary: torch.Tensor | None, precision: Precision
) -> Tables:
    """Return a function from (R, D) to logits (R, K, V') of parallel heads.

    Args:
        projection: The shared projection to V' tokens.
        vocabulary: (V',) tokens; None: all.
    """
    if isinstance(heads, ProjectionHeads):
        weight = heads.weight.detach()
        if vocabulary is not None:
            weight = weight[:, vocabulary]
        projections = pack_linear(weight.flatten(0, 1), None, precision)
        return lambda hidden: projections(hidden).unflatten(-1, (heads.num_heads, -1))
    if isinstance(heads, LatentHeads):
        packed = pack_linear(torch.cat([head.weight for head in heads.heads]), None, precision)
    else:
        packed = PackedParallelHeads(heads, precision)
    shape = -1, heads.num_heads
    return lambda hidden: projection(packed(hidden).view(-1, hidden.size(1))).unflatten(0, shape)


def pack_base(heads: Heads | None, precision: Precision) -> Tables | None:
    """Return the base head's layers (R, D) to (R, D), or None if it has none of its own."""
    base = None if heads is None else heads.base
    if isinstance(base, torch.nn.Linear):
        return pack_module(base, precision)
    return None if base is None else PackedResidualLayers(base, precision)


class PackedRecurrentHeads:
    def __init__(self, heads: RecurrentHeads, precision: Precision):
        self.norm = pack_norm(heads.cell.norm, precision)
        self.inner = pack_module(heads.cell.inner, precision, SILU)
        self.outer = pack_module(heads.cell.outer, precision)
        self.output = PackedResidualLayers(heads.output, precision)

    def advance(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(torch.cat([self.norm(states), embedded], dim=-1)), states)


class PackedCrossKeysValues(NamedTuple):
    """Cross-attention keys and values of the decoder's last layer for U utterances."""

    keys_values: Any  # result of the layer's ``project_encoder_out``
    mask: torch.Tensor | None  # (U, 1, 1, S) additive, or None
    utterances: int  # U
    chains: Any = None  # ``ChainGraphs`` if the addresses of ``keys_values`` and ``mask`` are fixed


class PackedAttendingHeads:
    """The layer of attending heads, with packed weights.

    Methods take states (R, D), the result of ``prepare``, and the utterance of each row. Subclasses
    with ``has_chain`` have ``chain``: ``Proposer.chain`` with embeddings (R, D) in place of tokens;
    the result may be on the host.
    """

    has_chain = False

    def __init__(self, heads: AttendingHeads, precision: Precision):
        layer, attention = heads.layer, heads.layer.encoder_attn
        self.state_norm = pack_norm(heads.state_norm, precision)
        self.token_norm = pack_norm(heads.token_norm, precision)
        self.fuse = pack_module(heads.fuse, precision)
        self.cross_norm = pack_norm(layer.encoder_attn_layer_norm, precision)
        self.queries = pack_module(attention.q_proj, precision)
        self.cross_output = pack_module(attention.out_proj, precision)
        self.feed_forward_norm = pack_norm(layer.final_layer_norm, precision)
        self.inner = pack_module(layer.fc1, precision, GELU)
        self.outer = pack_module(layer.fc2, precision)
        self.output = pack_norm(heads.norm, precision)

    def prepare(self, cross_keys_values: PackedCrossKeysValues) -> PackedCrossKeysValues:
        """Convert ``TreeState.cross_keys_values`` to the layout that the layer reads."""
        return cross_keys_values

    def advance(
        self,
        states: torch.Tensor,
        embedded: torch.Tensor,
        cross_keys_values: PackedCrossKeysValues,
        utterances: Sequence[int],
    ) -> torch.Tensor:
        """Advance the states by one token with embeddings (R, D)."""
        states, embedded = self.state_norm(states), self.token_norm(embedded)
        hidden = self.fuse(torch.cat([states, embedded], dim=-1), states)
        return self.attend(hidden, cross_keys_values, utterances)

    def attend(
        self,
        hidden: torch.Tensor,
        cross_keys_values: PackedCrossKeysValues,
        utterances: Sequence[int],
    ) -> torch.Tensor:
        """Run cross-attention and feed-forward layers on the fused states (R, D)."""
        queries = self.queries(self.cross_norm(hidden))
        keys_values, mask = cross_keys_values.keys_values, cross_keys_values.mask
        order, sizes = by_utterance(utterances, cross_keys_values.utterances)
        packing = Packing.of(sizes, queries.device)
        if order is None:
            attended = attend_encoder_out(queries, packing, keys_values, mask)
        else:
            order = upload(order, queries.device)
            grouped = attend_encoder_out(queries[order], packing, keys_values, mask)
            attended = torch.empty_like(grouped).index_copy_(0, order, grouped)
        hidden = self.cross_output(attended, hidden)
        return self.outer(self.inner(self.feed_forward_norm(hidden)), hidden)


def by_utterance(utterances: Sequence[int], count: int) -> tuple[list[int] | None, list[int]]:
    """Return the order that groups rows by utterance, and each utterance's number of rows.

    The order is None if the rows are grouped already. There are ``count`` utterances.
    """
    sizes = [0] * count
    for utterance in utterances:
        sizes[utterance] += 1
    order = sorted(range(len(utterances)), key=utterances.__getitem__)
    return (None if order == [*range(len(order))] else order), sizes
