"""Decoder layers and attending heads with the native kernels: one call for several layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from ctypes import Array, addressof, c_int32, c_void_p
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from espnet_medusa.decoding.runtime.heads import (
    PackedAttendingHeads,
    PackedCrossKeysValues,
    by_utterance,
)
from espnet_medusa.decoding.runtime.layer import LayerStack, LayerWeights, NewNodes, PackedLayer
from espnet_medusa.decoding.runtime.native import shortlist
from espnet_medusa.decoding.runtime.native.library import (
    AttendingHeadsArguments,
    CallArguments,
    ChainArguments,
    LayerArguments,
    ShortlistArguments,
    address,
    arguments_of,
    call_kernel,
    kernels,
    run_kernel,
)
from espnet_medusa.decoding.runtime.native.operations import NativeLinear
from espnet_medusa.decoding.runtime.native.shortlist import Shortlist
from espnet_medusa.decoding.runtime.precision import INT8_KERNELS
from espnet_medusa.decoding.tree.token_tree import TokenTree
from espnet_medusa.decoding.tree.tree_decoder import TreeState
from espnet_medusa.networks.heads import AttendingHeads

LANES = 16  # elements of the kernels' vectors


@dataclass(frozen=True)
class NativeCrossKeysValues:
    """Cross-attention keys and values of one layer in the kernels' layout, in 16 bits."""

    packed: torch.Tensor  # (U, heads, bytes)
    frames: int  # S

    def __getitem__(self, utterances: torch.Tensor) -> NativeCrossKeysValues:
        return NativeCrossKeysValues(self.packed[utterances], self.frames)

    @staticmethod
    def empty(
        utterances: int, frames: int, num_heads: int, head_size: int
    ) -> NativeCrossKeysValues:
        shape = utterances, num_heads, kernels().cross_bytes(frames, head_size)
        return NativeCrossKeysValues(torch.empty(shape, dtype=torch.uint8), frames)

    @staticmethod
    def pack(keys_values: torch.Tensor) -> NativeCrossKeysValues:
        """Pack keys and values (U, S, 2, heads, size)."""
        keys_values = keys_values.float().contiguous()
        utterances, frames, _, *sizes = keys_values.shape
        cross = NativeCrossKeysValues.empty(utterances, frames, *sizes)
        run_kernel("pack_cross", keys_values, utterances, frames, *sizes, cross.packed)
        return cross


class NativeLayer(PackedLayer):
    """A decoder layer for ``NativeStack``, with copies of weights: pre-norm, without ``concat``.

    Weights are 8-bit integers, cross-attention keys and values have 16 bits (bfloat16 or integers
    with a scale per frame), the rest is float32.
    """

    def __init__(self, weights: LayerWeights):
        super().__init__(weights, INT8_KERNELS)
        self.arguments = arguments_of(LayerArguments, self)

    def project_encoder_out(self, encoder_out: torch.Tensor) -> NativeCrossKeysValues:
        """Return cross-attention keys and values of encoder output (U, S, D)."""
        encoder_out = encoder_out.float().contiguous()
        utterances, frames, _ = encoder_out.shape
        projected = NativeCrossKeysValues.empty(utterances, frames, self.num_heads, self.head_size)
        weights, sizes = self.cross_keys_values.arguments, (utterances, frames, self.num_heads)
        run_kernel("project_cross", weights, encoder_out, *sizes, projected.packed)
        return projected


class NativeStack(LayerStack):
    """Layers whose ``extend`` is one call of the kernels."""

    def __init__(self, layers: Iterable[NativeLayer]):
        self.arguments = (LayerArguments * len(self))(*(layer.arguments for layer in self))

    def extend(self, hidden, nodes: NewNodes, first: int, state: TreeState) -> torch.Tensor:
        """Compute ``LayerStack.extend``; the mask is the result of ``visible_bits``."""
        packing, layer, slots = nodes.packing, self[0], state.cache.slots[first]
        cross = state.encoder_keys_values[first : first + len(self)]
        rows = first_rows(packing.sizes)
        known = (c_int32 * packing.shape[0])(*[state.cache.num_nodes] * packing.shape[0])
        call = CallArguments(
            *(packing.shape[0], layer.num_heads, layer.head_size, addressof(rows)),
            *(None, slots.data_ptr(), slots.size(1), addressof(known)),
            *(address(nodes.mask), packing.shape[1], None, cross[0].frames),
            *(address(state.encoder_out_mask), torch.get_num_threads()),
        )
        packed = (c_void_p * len(self))(*(part.packed.data_ptr() for part in cross))
        extended = torch.empty_like(hidden)
        call_kernel("extend_layers", self.arguments, len(self), call, packed, hidden, extended)
        return extended


def first_rows(sizes: Sequence[int]) -> Array[c_int32]:
    """Return the first packed row of each of U utterances, then the number of rows."""
    return (c_int32 * (len(sizes) + 1))(0, *accumulate(sizes))


def visible_bits(trees: Sequence[TokenTree], first: int) -> torch.Tensor:
    """Return masks (U, T, bytes) of nodes from ``first`` on: bit j is set if slot j is visible."""
    num_bytes = -(-len(trees[0]) // LANES) * LANES // 8
    rows = [bits.to_bytes(num_bytes, "little") for tree in trees for bits in tree.visible[first:]]
    visible = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)
    return visible.view(len(trees), -1, num_bytes)


class NativeAttendingHeads(PackedAttendingHeads):
    """Attending heads in 8 bits, for any decoder precision.

    Args:
        projection: To the logits, D to V'.
        vocabulary: (V',) tokens of the projection; None: all.
        tied: Whether its dequantized rows are the token embeddings; chains require it.
    """

    def __init__(
        self,
        heads: AttendingHeads,
        projection: NativeLinear,
        vocabulary: torch.Tensor | None,
        tied: bool,
    ):
        super().__init__(heads, INT8_KERNELS)
        self.projection, self.vocabulary, self.has_chain = projection, vocabulary, tied
        self.arguments = arguments_of(AttendingHeadsArguments, self)
        # Copies, because the module's weights may be freed before a chain.
        self.norm, self.moments = copy.deepcopy(heads.norm), heads.moments.clone()

    @cached_property
    def shortlist(self) -> Shortlist | None:
        """The shortlist of chains; built at the first chain, because beam search has none."""
        if self.projection.outputs < shortlist.LEAST_COLUMNS:
            return None
        return Shortlist(self.projection, self.norm, self.moments)

    def prepare(self, cross_keys_values: PackedCrossKeysValues) -> PackedCrossKeysValues:
        keys_values, mask, utterances = cross_keys_values[:3]
        if isinstance(keys_values, NativeCrossKeysValues):
            return cross_keys_values
        mask = None if mask is None else mask.float()
        return PackedCrossKeysValues(NativeCrossKeysValues.pack(keys_values), mask, utterances)

    def advance(self, states, embedded, cross_keys_values, utterances) -> torch.Tensor:
        def advance(call: ChainArguments, states: torch.Tensor, embedded: torch.Tensor):
            advanced = torch.empty_like(states)
            call_kernel("advance_states", self.arguments, call, states, embedded, advanced)
            return advanced

        return call_by_utterance(advance, cross_keys_values, utterances, 1, states, embedded)

    def chain(
        self, states, cross_keys_values, utterances, depth, min_log_prob, embedded=None
    ) -> torch.Tensor:
        # This reference keeps the memory during the call: from Python 3.12 on, another thread may
        # build the cached property a second time.
        few = self.shortlist
        columns = ShortlistArguments() if few is None else few.arguments
        weights = self.arguments, self.projection.arguments, columns

        def draft(call: ChainArguments, states: torch.Tensor, embedded: torch.Tensor | None = None):
            tokens = torch.empty(len(states), depth, dtype=torch.long)
            rows, results = (states, embedded), (self.vocabulary, tokens)
            call_kernel("draft_chain", *weights, call, *rows, min_log_prob, *results)
            return tokens

        rows = (states,) if embedded is None else (states, embedded)
        return call_by_utterance(draft, cross_keys_values, utterances, depth, *rows)


def call_by_utterance(
    kernel: Callable[..., torch.Tensor],
    cross_keys_values: PackedCrossKeysValues,
    utterances: Sequence[int],
    steps: int,
    *rows: torch.Tensor,
) -> torch.Tensor:
    """Group rows (R, D) by utterance, call ``kernel(arguments, *rows)`` and restore the order.

    The result of ``kernel``, which drafts ``steps`` tokens, has R rows.
    """
    cross, mask, count = cross_keys_values[:3]
    order, sizes = by_utterance(utterances, count)
    order = None if order is None else torch.tensor(order)
    rows = [(part if order is None else part[order]).float().contiguous() for part in rows]
    width, num_heads, first = rows[0].size(1), cross.packed.size(1), first_rows(sizes)
    call = ChainArguments(
        *(count, num_heads, width // num_heads, addressof(first)),
        *(address(cross.packed), cross.frames, address(mask)),
        *(steps, torch.get_num_threads()),
    )
    result = kernel(call, *rows)
    return result if order is None else torch.empty_like(result).index_copy_(0, order, result)
