"""A decoder layer with cross-attention over new nodes, with cached keys and values (inference)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from espnet_medusa.runtime.linear import Norm, pack_linear, pack_module, pack_norm
from espnet_medusa.runtime.native.norm import NativeNorm
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.tree.tree_decoder import TreeState
from espnet_medusa.tree.upload import upload


@dataclass(frozen=True)
class Packing:
    """Rows of nodes without the padding of utterances that have fewer.

    Attributes:
        sizes: U, nodes of each utterance; the most are T.
        places: (R,) of these nodes among the U T; None where nothing is padded.
    """

    sizes: Sequence[int]
    places: torch.Tensor | None

    @staticmethod
    def of(sizes: Sequence[int], device: torch.device) -> "Packing":
        """Of so many nodes of each utterance."""
        width = max(sizes)
        if min(sizes) == width:
            return Packing(sizes, None)
        rows = enumerate(sizes)
        places = [row * width + place for row, size in rows for place in range(size)]
        return Packing(sizes, upload(places, device))

    @property
    def shape(self) -> tuple[int, int]:
        """U, T."""
        return len(self.sizes), max(self.sizes)

    @property
    def first_rows(self) -> list[int]:
        """U + 1 packed rows: where each utterance's begin, and where they end."""
        return [0, *accumulate(self.sizes)]

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """(U, T, D) to (R, D), R the nodes that are there."""
        rows = padded.flatten(0, 1)
        return rows if self.places is None else rows.index_select(0, self.places)

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """(R, D) to (U, T, D), zeros where nothing is."""
        if self.places is not None:
            utterances, width = self.shape
            padded = packed.new_zeros(utterances * width, packed.size(-1))
            packed = padded.index_copy_(0, self.places, packed)
        return packed.view(*self.shape, -1)


class AttentionWeights(NamedTuple):
    """Of self-attention or cross-attention.

    Attributes:
        norm: Before the attention or behind what it is added to.
        queries: (D, D), as ``keys`` and ``values``.
        output: (D, D); with ``concat`` (2 D, D).
    """

    norm: torch.nn.LayerNorm
    queries: torch.nn.Linear
    keys: torch.nn.Linear
    values: torch.nn.Linear
    output: torch.nn.Linear


@dataclass(frozen=True)
class LayerWeights:
    """A trained decoder layer's modules, under names of our own.

    Attributes:
        num_heads: Of both attentions.
        own: Self-attention.
        cross: Cross-attention.
        feed_forward_norm: As the attentions'.
        inner: Feed-forward layer.
        outer: Back to D.
        activation: Between them.
        norm_first: Normalize what a part reads; otherwise its sum with what it adds.
        concat: Attentions' outputs are products of what they read, then what they found.
    """

    num_heads: int
    own: AttentionWeights
    cross: AttentionWeights
    feed_forward_norm: torch.nn.LayerNorm
    inner: torch.nn.Linear
    outer: torch.nn.Linear
    activation: str
    norm_first: bool = True
    concat: bool = False

    @property
    def head_size(self) -> int:
        """Of one attention head."""
        return self.own.queries.out_features // self.num_heads


class PackedLayer:
    """A decoder layer with weights laid out for ``extend``.

    Queries, keys and values of self-attention are one matrix product, as are keys and values of
    the memory.

    Args:
        weights: Copied.
        precision: What to compute in.
    """

    def __init__(self, weights: LayerWeights, precision: Precision):
        own, cross = weights.own, weights.cross
        self.num_heads, self.head_size = weights.num_heads, weights.head_size
        self.norm_first, self.concat = weights.norm_first, weights.concat
        self.dtype = precision.dtype
        self.own_norm = pack_norm(own.norm, precision)
        joined = join(own.queries, own.keys, own.values)
        self.queries_keys_values = pack_linear(*joined, precision)
        self.own_output = pack_module(own.output, precision)
        self.cross_norm = pack_norm(cross.norm, precision)
        self.cross_queries = pack_module(cross.queries, precision)
        self.memory_keys_values = pack_linear(*join(cross.keys, cross.values), precision)
        self.cross_output = pack_module(cross.output, precision)
        self.feed_forward_norm = pack_norm(weights.feed_forward_norm, precision)
        self.inner = pack_module(weights.inner, precision, weights.activation)
        self.outer = pack_module(weights.outer, precision)

    def attend_memory(self, memory: torch.Tensor) -> torch.Tensor:
        """Cross-attention keys and values (U, S, 2, heads, size) of memory (U, S, D)."""
        keys_values = self.memory_keys_values(memory.to(self.dtype).flatten(0, 1))
        return keys_values.view(*memory.shape[:2], 2, self.num_heads, self.head_size)

    def extend(
        self,
        hidden: torch.Tensor,
        packing: Packing,
        index: int,
        mask: torch.Tensor | None,
        state: TreeState,
    ) -> torch.Tensor:
        """Run the layer on new nodes.

        Args:
            hidden: (R, D), packed: only attention needs to know whose nodes they are.
            packing: Where the R nodes stand among (U, T).
            index: The layer's place in cache and memory.
            mask: (U, 1, T, N + T) additive, who attends to whom; None: everybody to all.
            state: Gets the layer's new keys and values.

        Returns:
            (R, D).
        """
        width = packing.shape[1]
        read = self._before(self.own_norm, hidden)
        joined = packing.unpack(self.queries_keys_values(read))
        joined = joined.view(-1, width, 3, self.num_heads, self.head_size)
        keys_values = state.cache.write(index, joined[:, :, 1:])
        attended = packing.pack(attend(joined[:, :, 0], keys_values, mask))
        hidden = self._after(self.own_norm, self.own_output(self._found(read, attended), hidden))

        read = self._before(self.cross_norm, hidden)
        seen = state.memory[index], state.memory_mask
        attended = ask_memory(self.cross_queries(read), packing, *seen)
        hidden = self.cross_output(self._found(read, attended), hidden)
        hidden = self._after(self.cross_norm, hidden)

        read = self._before(self.feed_forward_norm, hidden)
        return self._after(self.feed_forward_norm, self.outer(self.inner(read), hidden))

    def _before(self, norm: Norm | NativeNorm, hidden: torch.Tensor) -> torch.Tensor:
        return norm(hidden) if self.norm_first else hidden

    def _after(self, norm: Norm | NativeNorm, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self.norm_first else norm(hidden)

    def _found(self, read: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        return torch.cat([read, attended], dim=-1) if self.concat else attended


class LayerStack:
    """Layers that run one after the other.

    Args:
        layers: Laid out, each with an ``extend``.
    """

    def __init__(self, layers: Sequence[Any]):
        self.layers = layers

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> Any:
        return self.layers[index]

    def extend(
        self,
        hidden: torch.Tensor,
        packing: Packing,
        first: int,
        mask: torch.Tensor | None,
        *seen: Any,
    ) -> torch.Tensor:
        """As the layers' ``extend``; ``first`` is the first one's place in cache and memory."""
        for index, layer in enumerate(self.layers, first):
            hidden = layer.extend(hidden, packing, index, mask, *seen)
        return hidden


def ask_memory(
    queries: torch.Tensor, packing: Packing, memory: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """What queries find in their utterances' memory: (R, D) to (R, D).

    Args:
        queries: Packed.
        packing: Whose they are.
        memory: (U, S, 2, heads, size) keys and values.
        mask: (U, 1, 1, S) additive, or None.
    """
    queries = packing.unpack(queries).unflatten(-1, memory.shape[-2:])
    return packing.pack(attend(queries, memory, mask))


def attend(
    queries: torch.Tensor, keys_values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """(U, T, D) from queries (U, T, heads, size) and (U, N, 2, heads or groups of them, size)."""
    keys, values = keys_values.transpose(1, 3).unbind(2)
    grouped = keys.size(1) != queries.size(2)
    alone = queries.size(1) == 1 and queries.dtype == torch.bfloat16 and queries.is_cpu
    if alone:  # a CPU's product for one row of bfloat16 takes several times that of two
        queries = pad(queries, (0, 0, 0, 0, 0, 1))
    attended = scaled_dot_product_attention(
        queries.transpose(1, 2), keys, values, mask, enable_gqa=grouped
    ).transpose(1, 2)
    return (attended[:, :1] if alone else attended).flatten(2)


def join(*modules: torch.nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and biases of several matrix products with one input as those of one."""
    weight = torch.cat([module.weight for module in modules])
    biases = [
        weight.new_zeros(len(module.weight)) if module.bias is None else module.bias
        for module in modules
    ]
    return weight, torch.cat(biases)
