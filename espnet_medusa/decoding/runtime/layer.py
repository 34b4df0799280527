"""A decoder layer with cross-attention that computes new nodes from cached keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend
from torch.nn.functional import pad, scaled_dot_product_attention

from espnet_medusa.data.files.mapped_weights import page_out
from espnet_medusa.decoding.runtime.linear import Norm, pack_linear, pack_module, pack_norm
from espnet_medusa.decoding.runtime.precision import Precision
from espnet_medusa.decoding.tree.token_tree import upload
from espnet_medusa.decoding.tree.tree_decoder import TreeState

MOST_GROUPED = 32  # queries of ``attend_as_heads``


@dataclass(frozen=True)
class Packing:
    """Where the R new nodes of U utterances are in a padded (U, T) batch."""

    sizes: Sequence[int]  # U, new nodes of each utterance; T is their maximum
    # (R,) indices of the nodes in the flattened (U T); None without padding.
    places: torch.Tensor | None

    @staticmethod
    def of(sizes: Sequence[int], device: torch.device) -> "Packing":
        width = max(sizes)
        if min(sizes) == width:
            return Packing(sizes, None)
        places = [row * width + place for row, size in enumerate(sizes) for place in range(size)]
        return Packing(sizes, upload(places, device))

    @property
    def shape(self) -> tuple[int, int]:
        """U, T."""
        return len(self.sizes), max(self.sizes)

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """Drop the padding: (U, T, D) to (R, D)."""
        rows = padded.flatten(0, 1)
        return rows if self.places is None else rows.index_select(0, self.places)

    def unpack(self, packed: torch.Tensor, *shape: int) -> torch.Tensor:
        """Pad with zeros: (R, D) to (U, T, D), with D divided into ``shape``."""
        if self.places is not None:
            utterances, width = self.shape
            padded = packed.new_zeros(utterances * width, packed.size(-1))
            packed = padded.index_copy_(0, self.places, packed)
        return packed.view(*self.shape, *shape)


class NewNodes(NamedTuple):
    """The R nodes of a decoder call."""

    ids: torch.Tensor  # (R,) tokens
    positions: torch.Tensor  # (R,)
    # Self-attention mask: additive (U, 1, T, N), ``visible_bits`` (U, T, bytes), or None: no mask.
    mask: torch.Tensor | None
    packing: Packing  # where the R nodes are in (U, T)


class AttentionWeights(NamedTuple):
    """Modules of self-attention or cross-attention."""

    # Before the attention; with ``norm_first`` false after the residual sum.
    norm: torch.nn.LayerNorm
    queries: torch.nn.Linear  # (D, D), like ``keys`` and ``values``
    keys: torch.nn.Linear
    values: torch.nn.Linear
    output: torch.nn.Linear  # (D, D); with ``concat`` (2 D, D)


@dataclass(frozen=True)
class LayerWeights:
    """Modules of a trained decoder layer, independent of the library that defines it."""

    num_heads: int  # of each attention
    self_attention: AttentionWeights
    cross_attention: AttentionWeights
    feed_forward_norm: torch.nn.LayerNorm
    inner: torch.nn.Linear  # first feed-forward layer
    outer: torch.nn.Linear  # second feed-forward layer
    activation: str  # between these layers
    # Normalize the input of each part (pre-norm); else the residual sum (post-norm).
    norm_first: bool = True
    # An attention's output layer reads the attention's input and result, concatenated.
    concat: bool = False

    @property
    def head_size(self) -> int:
        return self.self_attention.queries.out_features // self.num_heads


class PackedLayer:
    """A decoder layer with a packed copy of its weights.

    Queries, keys and values of self-attention are one matrix product, as are keys and values of
    cross-attention.
    """

    def __init__(self, weights: LayerWeights, precision: Precision):
        attention, cross = weights.self_attention, weights.cross_attention
        self.num_heads, self.head_size = weights.num_heads, weights.head_size
        self.norm_first, self.concat = weights.norm_first, weights.concat
        self.dtype = precision.dtype
        self.self_norm = pack_norm(attention.norm, precision)
        joined = join(attention.queries, attention.keys, attention.values)
        self.queries_keys_values = pack_linear(*joined, precision)
        self.self_output = pack_module(attention.output, precision)
        self.cross_norm = pack_norm(cross.norm, precision)
        self.cross_queries = pack_module(cross.queries, precision)
        self.cross_keys_values = pack_linear(*join(cross.keys, cross.values), precision)
        self.cross_output = pack_module(cross.output, precision)
        self.feed_forward_norm = pack_norm(weights.feed_forward_norm, precision)
        self.inner = pack_module(weights.inner, precision, weights.activation)
        self.outer = pack_module(weights.outer, precision)

    def project_encoder_out(self, encoder_out: torch.Tensor) -> torch.Tensor:
        """Return keys and values (U, S, 2, heads, size) of encoder output (U, S, D)."""
        keys_values = self.cross_keys_values(encoder_out.to(self.dtype).flatten(0, 1))
        return keys_values.view(*encoder_out.shape[:2], 2, self.num_heads, self.head_size)

    def extend(
        self, hidden: torch.Tensor, nodes: NewNodes, index: int, state: TreeState
    ) -> torch.Tensor:
        """Compute the layer for new nodes (R, D) and cache their keys and values.

        ``index`` is the layer's index in ``state.cache`` and ``state.encoder_keys_values``.
        """
        packing = nodes.packing
        inputs = self._pre_norm(self.self_norm, hidden)
        joined = self.queries_keys_values(inputs)
        joined = packing.unpack(joined, 3, self.num_heads, self.head_size)
        keys_values = state.cache.write(index, joined[:, :, 1:])
        attended = packing.pack(attend(joined[:, :, 0], keys_values, nodes.mask))
        hidden = self.self_output(self._concatenate(inputs, attended), hidden)
        hidden = self._post_norm(self.self_norm, hidden)

        inputs = self._pre_norm(self.cross_norm, hidden)
        queries, encoder_out = self.cross_queries(inputs), state.encoder_keys_values[index]
        attended = attend_encoder_out(queries, packing, encoder_out, state.encoder_out_mask)
        hidden = self.cross_output(self._concatenate(inputs, attended), hidden)
        hidden = self._post_norm(self.cross_norm, hidden)

        inputs = self._pre_norm(self.feed_forward_norm, hidden)
        return self._post_norm(self.feed_forward_norm, self.outer(self.inner(inputs), hidden))

    def _pre_norm(self, norm: Norm, hidden: torch.Tensor) -> torch.Tensor:
        return norm(hidden) if self.norm_first else hidden

    def _post_norm(self, norm: Norm, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self.norm_first else norm(hidden)

    def _concatenate(self, inputs: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        return torch.cat([inputs, attended], dim=-1) if self.concat else attended


class LayerStack(tuple):
    """Packed layers that run one after the other."""

    def extend(
        self, hidden: torch.Tensor, nodes: NewNodes, first: int, *context: Any
    ) -> torch.Tensor:
        """Call ``extend`` of each layer; ``first`` is the index of the first one."""
        for index, layer in enumerate(self, first):
            hidden = layer.extend(hidden, nodes, index, *context)
        return hidden


def attend_encoder_out(
    queries: torch.Tensor, packing: Packing, encoder_out: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Compute cross-attention: packed queries (R, D) to (R, D).

    ``encoder_out`` has keys and values (U, S, 2, heads, size); ``mask`` (U, 1, 1, S) is additive.
    """
    queries = packing.unpack(queries, *encoder_out.shape[-2:])
    return packing.pack(attend(queries, encoder_out, mask))


def attend(
    queries: torch.Tensor, keys_values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Compute attention (U, T, D) of queries (U, T, heads, size).

    ``keys_values`` are (U, N, 2, heads, size), with fewer heads in grouped-query attention.
    """
    keys, values = keys_values.transpose(1, 3).unbind(2)
    grouped = keys.size(1) != queries.size(2)
    if not grouped and (mask is None or mask.size(2) == 1) and 1 < queries.size(1) <= MOST_GROUPED:
        heads = as_heads(queries)
        if uses_cudnn(heads, keys, values, mask):
            return attend_as_heads(heads, keys, values, mask)
    single = queries.size(1) == 1 and queries.dtype == torch.bfloat16 and queries.is_cpu
    if single:  # on a CPU one row of bfloat16 takes several times as long as two
        queries = pad(queries, (0, 0, 0, 0, 0, 1))
    attended = scaled_dot_product_attention(
        queries.transpose(1, 2), keys, values, mask, enable_gqa=grouped
    ).transpose(1, 2)
    return (attended[:, :1] if single else attended).flatten(2)


def as_heads(queries: torch.Tensor) -> torch.Tensor:
    """Return the T queries of each head as T heads with one query: (U, heads T, 1, size)."""
    rows, width, num_heads, size = queries.shape
    return queries.transpose(1, 2).reshape(rows, num_heads * width, 1, size)


def attend_as_heads(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Compute ``attend`` (U, T, D) for the result of ``as_heads``, by grouped-query attention.

    Keys and values are (U, heads, N, size). cuDNN's kernel for one query divides the keys among the
    multiprocessors; its kernel for several queries does not.
    """
    attended = scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
    rows, num_heads, _, size = keys.shape
    return attended.view(rows, num_heads, -1, size).transpose(1, 2).flatten(2)


def uses_cudnn(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    """Return whether torch would compute this grouped-query attention with cuDNN."""
    if not queries.is_cuda:
        return False
    choice = torch._fused_sdp_choice(queries, keys, values, mask, enable_gqa=True)
    return choice == SDPBackend.CUDNN_ATTENTION.value


def join(*modules: torch.nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Concatenate weights and biases of linear layers with the same input; None: no biases."""
    weight = torch.cat([module.weight for module in modules])
    biases = [
        weight.new_zeros(len(module.weight)) if module.bias is None else module.bias
        for module in modules
    ]
    for module in modules:
        page_out(module.weight)
    without = all(module.bias is None for module in modules)
    return weight, None if without else torch.cat(biases)
