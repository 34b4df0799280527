"""Decoder calls as CUDA graphs, captured once and replayed.

One storage serves all searches with the same number of utterances and frames. Without CUDA, the
same padded calls run without graphs; tests use this on machines without a GPU.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from espnet_medusa.decoding.draft.head_proposers import AttendingHeadsProposer
from espnet_medusa.decoding.runtime.chain_graph import GraphAttendingHeads
from espnet_medusa.decoding.runtime.cross_attention import WhisperRuntime
from espnet_medusa.decoding.runtime.device_loop import DeviceLoop
from espnet_medusa.decoding.runtime.graph import GraphMemory
from espnet_medusa.decoding.runtime.graph_storage import (
    NODE_BUCKETS,
    CapturedCall,
    Storage,
    padded_inputs,
)
from espnet_medusa.decoding.runtime.layer import NewNodes, Packing
from espnet_medusa.decoding.runtime.precision import Precision
from espnet_medusa.decoding.tree.token_tree import TokenTree, upload
from espnet_medusa.decoding.tree.tree_decoder import NodeOutputs, TreeState
from espnet_medusa.networks.heads import AttendingHeads
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder

FRAME_STEP = 128
IDLE_BYTES = 2 << 30  # limit for unused storages: batches of other sizes need the memory


@dataclass
class CudaGraphState(TreeState):
    storage: Storage | None = None


class CudaGraphWhisperRuntime(WhisperRuntime):
    """A ``WhisperRuntime`` with one CUDA graph per bucket."""

    def __init__(self, decoder: WhisperMedusaDecoder, precision: Precision):
        super().__init__(decoder, precision)
        self.storages: dict[tuple, Storage] = {}  # least recently used first
        self.graph_memory = GraphMemory()

    def start(self, encoder_out, encoder_out_lens, with_heads=True) -> CudaGraphState:
        padding = -encoder_out.size(1) % FRAME_STEP
        encoder_out = torch.nn.functional.pad(encoder_out.to(self.dtype), (0, 0, 0, padding))
        with self.graph_memory.lock:
            return self._start(encoder_out, encoder_out_lens, with_heads)

    def _start(
        self, encoder_out: torch.Tensor, encoder_out_lens: torch.Tensor, with_heads: bool
    ) -> CudaGraphState:
        """Begin a search in an idle storage, or in a new one."""
        layers = self._used_layers(with_heads)
        key = (*encoder_out.shape, len(layers))
        storage = self.storages.pop(key, None)
        if storage is None or not storage.idle:
            self._drop_idle()
            sizes = layers, self.max_depth(0), isinstance(self.heads, AttendingHeads)
            storage = Storage(encoder_out, *sizes, self.graph_memory)
        self.storages[key] = storage
        storage.load(encoder_out, encoder_out_lens, with_heads)
        state = CudaGraphState(
            trees=[TokenTree() for _ in encoder_out],
            cache=storage.cache,
            encoder_keys_values=storage.encoder_keys_values,
            encoder_out_mask=storage.encoder_out_mask,
            with_heads=with_heads,
            offsets=[0] * len(encoder_out),
            cross_keys_values=storage.cross_keys_values if with_heads else None,
            storage=storage,
        )
        storage.user = weakref.ref(state)
        return state

    def _drop_idle(self) -> None:
        """Free the least recently used idle storages down to IDLE_BYTES."""
        idle = [key for key, storage in self.storages.items() if storage.idle]
        num_bytes = sum(self.storages[key].num_bytes for key in idle)
        for key in idle:
            if num_bytes <= IDLE_BYTES:
                return
            num_bytes -= self.storages.pop(key).num_bytes

    def _attending_heads(self, projection, vocabulary, precision) -> GraphAttendingHeads:
        tokens = vocabulary
        if tokens is None:
            tokens = torch.arange(len(self.table), device=self.device)
        embed = partial(self.embed_tokens, tokens)
        return GraphAttendingHeads(self.heads, precision, projection, embed, vocabulary)

    def draft_depths(self, most) -> list[int]:
        depths = (size - 1 for size in NODE_BUCKETS)  # others would be padded to these
        return [*(depth for depth in depths if depth < most), most]

    def chain_loop(self, proposer) -> DeviceLoop | None:
        heads = None
        if proposer is not None:
            heads = proposer.heads if type(proposer) is AttendingHeadsProposer else None
            if not isinstance(heads, GraphAttendingHeads):
                return None
        return DeviceLoop(self, heads)

    def extend(self, state: CudaGraphState, tokens, parents) -> NodeOutputs:
        with self.graph_memory.lock:
            return self._extend(state, tokens, parents)

    def _extend(self, state: CudaGraphState, tokens, parents) -> NodeOutputs:
        first, sizes = self._grow(state, tokens, parents)
        call, cache = state.storage.call(first, max(sizes)), state.cache
        call.write(*padded_inputs(state.trees, first, tokens, call.visible.shape, cache.capacity))
        cache.places, cache.attended = call.places, call.visible.size(3)
        outputs = call.replayed.run(lambda: self._compute_static(call, state))
        cache.commit(max(sizes))
        rows = call.rows[: sum(sizes)]
        hidden = outputs.hidden[rows]
        same = outputs.head_input is outputs.hidden
        return NodeOutputs(hidden, hidden if same else outputs.head_input[rows])

    def _compute_static(self, call: CapturedCall, state: TreeState) -> NodeOutputs:
        num_utterances, _, width, _ = call.visible.shape
        mask = torch.zeros(call.visible.shape, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill(~call.visible, -torch.inf)
        packing = Packing([width] * num_utterances, None)
        return self._compute(state, NewNodes(*call.numbers.unbind(), mask, packing))

    def select(self, state: CudaGraphState, utterances: Sequence[int]) -> None:
        """Keep these utterances; shapes are fixed, so that rows at the end become unused."""
        state.trees = [state.trees[row] for row in utterances]
        state.offsets = [state.offsets[row] for row in utterances]
        state.cache.select(utterances)
        rows = upload(utterances, self.device)
        for part in [*state.encoder_keys_values, state.encoder_out_mask]:
            part[: len(utterances)] = part[rows]
