"""Attending heads in kernels of our own: chains of drafts without a step in Python."""

from __future__ import annotations

from ctypes import addressof, c_int32
from itertools import accumulate

import torch

from espnet_medusa.model.heads import AttendingHeads
from espnet_medusa.runtime.attending_heads import HeardMemory, PackedAttendingHeads
from espnet_medusa.runtime.layer import PackedLayer, Packing
from espnet_medusa.runtime.native.library import (
    AttendingHeadsArguments,
    ChainArguments,
    kernels,
    pointer,
)
from espnet_medusa.runtime.native.linear import NativeLinear
from espnet_medusa.runtime.native_layer import NativeLayer, NativeMemory
from espnet_medusa.runtime.precision import INT8_LAYERS


class NativeAttendingHeads(PackedAttendingHeads):
    """Attending heads in 8 bits, whatever the decoder computes in.

    Args:
        heads: Their weights; copied.
        last_layer: The decoder's, which lends its keys and values of the memory.
        projection: Of the tokens that they draft, (D) to (V'); its rows are the embeddings.
    """

    def __init__(
        self,
        heads: AttendingHeads,
        last_layer: PackedLayer | NativeLayer,
        projection: NativeLinear,
    ):
        super().__init__(heads, last_layer, INT8_LAYERS)
        self.projection = projection
        norms = self.state_norm, self.token_norm, self.cross_norm, self.feed_forward_norm, self.norm
        linears = self.fuse, self.queries, self.found, self.inner, self.outer
        self.arguments = AttendingHeadsArguments(*(part.arguments for part in norms + linears))

    def hear(self, memory: torch.Tensor, memory_lengths: torch.Tensor) -> HeardMemory:
        heard = super().hear(memory, memory_lengths)
        if isinstance(heard.keys_values, NativeMemory):
            return heard
        return heard._replace(keys_values=NativeMemory.pack(heard.keys_values))

    def _find(self, queries: torch.Tensor, packing: Packing, heard: HeardMemory) -> torch.Tensor:
        return heard.keys_values.ask(queries, packing, heard.mask)

    def chain(
        self, states: torch.Tensor, heard: HeardMemory, utterances: torch.Tensor, depth: int
    ) -> torch.Tensor | None:
        if bool((utterances.diff() < 0).any()):
            return None
        count, packed = heard.utterances, heard.keys_values.packed
        sizes = utterances.bincount(minlength=count).tolist()
        first_rows = (c_int32 * (count + 1))(0, *accumulate(sizes))
        states = states.float().contiguous()
        call = ChainArguments(
            *(count, packed.size(1), states.size(1) // packed.size(1), addressof(first_rows)),
            *(packed.data_ptr(), heard.keys_values.frames, pointer(heard.mask)),
            *(depth, torch.get_num_threads()),
        )
        columns = torch.empty(len(states), depth, dtype=torch.long)
        kernels().draft_chain(
            *(self.arguments, self.projection.arguments, call),
            *(states.data_ptr(), columns.data_ptr()),
        )
        return columns
