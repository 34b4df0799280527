"""Attending heads in kernels of our own: chains of drafts without a step in Python."""

from __future__ import annotations

from ctypes import addressof, c_int32
from itertools import accumulate

import torch

from espnet_medusa.model.heads import AttendingHeads
from espnet_medusa.runtime.attending_heads import HeardMemory, PackedAttendingHeads
from espnet_medusa.runtime.layer import Packing
from espnet_medusa.runtime.native.library import (
    AttendingHeadsArguments,
    ChainArguments,
    kernels,
    pointer,
)
from espnet_medusa.runtime.native.linear import NativeLinear
from espnet_medusa.runtime.native_layer import NativeMemory
from espnet_medusa.runtime.precision import INT8_LAYERS


class NativeAttendingHeads(PackedAttendingHeads):
    """Attending heads in 8 bits, whatever the decoder computes in.

    Args:
        heads: Their weights; copied.
        projection: Of the tokens that they draft, (D) to (V'); its rows are the embeddings.
    """

    def __init__(self, heads: AttendingHeads, projection: NativeLinear):
        super().__init__(heads, INT8_LAYERS)
        self.projection = projection
        norms = self.state_norm, self.token_norm, self.cross_norm, self.feed_forward_norm, self.norm
        linears = self.fuse, self.queries, self.found, self.inner, self.outer
        self.arguments = AttendingHeadsArguments(*(part.arguments for part in norms + linears))

    def hear(self, heard: HeardMemory) -> HeardMemory:
        if isinstance(heard.keys_values, NativeMemory):
            return heard
        mask = None if heard.mask is None else heard.mask.float()
        return HeardMemory(NativeMemory.pack(heard.keys_values), mask, heard.utterances)

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
