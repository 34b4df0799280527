"""Attending heads in kernels of our own: a step, or a chain of them, is one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof, c_int32
from itertools import accumulate

import torch

from espnet_medusa.model.heads import AttendingHeads
from espnet_medusa.runtime.attending_heads import EncoderKeysValues, by_utterance
from espnet_medusa.runtime.linear import GELU, pack_module
from espnet_medusa.runtime.native.library import (
    AttendingHeadsArguments,
    ChainArguments,
    kernels,
    pointer,
)
from espnet_medusa.runtime.native.linear import NativeLinear
from espnet_medusa.runtime.native.norm import NativeNorm
from espnet_medusa.runtime.native_layer import NativeMemory
from espnet_medusa.runtime.precision import INT8_LAYERS


class NativeAttendingHeads:
    """Attending heads in 8 bits, whatever the decoder computes in.

    Args:
        heads: Their weights; copied.
        projection: Of the tokens that they draft, (D) to (V'); its rows are the embeddings of
            chains.
    """

    def __init__(self, heads: AttendingHeads, projection: NativeLinear):
        layer, attention = heads.layer, heads.layer.encoder_attn
        self.projection = projection
        self.output = NativeNorm(heads.norm)
        norms = heads.state_norm, heads.token_norm
        norms += layer.encoder_attn_layer_norm, layer.final_layer_norm
        linears = heads.fuse, attention.q_proj, attention.out_proj
        self.parts = [
            *(*map(NativeNorm, norms), self.output),
            *(pack_module(module, INT8_LAYERS) for module in linears),
            *(pack_module(layer.fc1, INT8_LAYERS, GELU), pack_module(layer.fc2, INT8_LAYERS)),
        ]
        self.arguments = AttendingHeadsArguments(*(part.arguments for part in self.parts))

    def prepare(self, cross_keys_values: EncoderKeysValues) -> EncoderKeysValues:
        """What all steps attend to, in the kernels' layout."""
        if isinstance(cross_keys_values.keys_values, NativeMemory):
            return cross_keys_values
        mask = None if cross_keys_values.mask is None else cross_keys_values.mask.float()
        return EncoderKeysValues(
            NativeMemory.pack(cross_keys_values.keys_values), mask, cross_keys_values.utterances
        )

    def advance(
        self,
        states: torch.Tensor,
        embedded: torch.Tensor,
        cross_keys_values: EncoderKeysValues,
        utterances: Sequence[int],
    ) -> torch.Tensor:
        """As ``PackedAttendingHeads``'s."""

        def advance(call: ChainArguments, states: torch.Tensor, embedded: torch.Tensor):
            advanced = torch.empty_like(states)
            pointers = map(pointer, (states, embedded, advanced))
            kernels().advance_states(self.arguments, call, *pointers)
            return advanced

        return in_order(advance, cross_keys_values, utterances, 1, states, embedded)

    def chain(
        self,
        states: torch.Tensor,
        cross_keys_values: EncoderKeysValues,
        utterances: Sequence[int],
        depth: int,
    ) -> torch.Tensor:
        """(R, depth) best columns of the projection behind (R, D), one after the other."""

        def draft(call: ChainArguments, states: torch.Tensor):
            columns = torch.empty(len(states), depth, dtype=torch.long)
            pointers = map(pointer, (states, columns))
            kernels().draft_chain(self.arguments, self.projection.arguments, call, *pointers)
            return columns

        return in_order(draft, cross_keys_values, utterances, depth, states)


def in_order(
    work: Callable[..., torch.Tensor],
    cross_keys_values: EncoderKeysValues,
    utterances: Sequence[int],
    steps: int,
    *rows: torch.Tensor,
) -> torch.Tensor:
    """What ``work(call, *rows)`` makes of R rows, utterance by utterance.

    Args:
        work: Calls a kernel.
        cross_keys_values: Of ``NativeAttendingHeads.prepare``.
        utterances: R, whose the rows are, in any order.
        steps: That the kernel takes.
        rows: (R, D) each.
    """
    count = cross_keys_values.utterances
    order, sizes = by_utterance(utterances, count)
    order = None if order is None else torch.tensor(order)
    rows = [(part if order is None else part[order]).float().contiguous() for part in rows]
    width = rows[0].size(1)
    first_rows = (c_int32 * (count + 1))(0, *accumulate(sizes))
    memory = cross_keys_values.keys_values
    num_heads = memory.packed.size(1)
    call = ChainArguments(
        *(count, num_heads, width // num_heads, addressof(first_rows)),
        *(pointer(memory.packed), memory.frames, pointer(cross_keys_values.mask)),
        *(steps, torch.get_num_threads()),
    )
    found = work(call, *rows)
    return found if order is None else torch.empty_like(found).index_copy_(0, order, found)
