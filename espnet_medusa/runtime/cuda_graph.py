"""Decoder calls as CUDA graphs, captured once and replayed.

A graph runs the same kernels on the same addresses. Calls are therefore padded to a few sizes
(buckets), and their inputs and outputs have fixed addresses. One storage serves all searches with
the same number of utterances and frames. Without CUDA, the same padded calls run without graphs;
tests use this on machines without a GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.runtime.cross_attention import WhisperRuntime
from espnet_medusa.runtime.layer import NewNodes, Packing
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.runtime.tree_runtime import depths
from espnet_medusa.tree.node_cache import NodeCache
from espnet_medusa.tree.token_tree import TokenTree, staged, upload, visibility
from espnet_medusa.tree.tree_decoder import NodeOutputs, TreeState

NODE_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
FEWEST_SLOTS = 64
FRAME_STEP = 128
WARM_UP_CALLS = 2
IDLE_BYTES = 2 << 30  # limit for unused storages: batches of other sizes need the memory


class StaticNodeCache(NodeCache):
    """A cache that writes to the slots in ``places`` and reads a fixed number of slots."""

    places: torch.Tensor  # (T,) slots of the new nodes
    attended: int  # number of slots that are read, including the new ones

    def write(self, layer: int, keys_values: torch.Tensor) -> torch.Tensor:
        slots = self.slots[layer]
        slots.index_copy_(1, self.places, keys_values)
        return slots[:, : self.attended]

    def select(self, utterances: Sequence[int]) -> None:
        self.slots[:, : len(utterances)] = self.slots[:, upload(utterances, self.slots.device)]


@dataclass
class CapturedCall:
    """The call of one bucket: its input and output tensors, and its graph."""

    numbers: torch.Tensor  # (2, U T) token ids and positions
    places: torch.Tensor  # (T,) slots of the new nodes
    visible: torch.Tensor  # (U, 1, T, N) bool, which nodes each new node attends to
    outputs: NodeOutputs | None = None  # written by each replay
    graph: torch.cuda.CUDAGraph | None = None  # none without CUDA


@dataclass
class Storage:
    """Memory of states of one size; one state uses it at a time."""

    cache: StaticNodeCache  # self-attention keys and values
    # Per layer, cross-attention keys and values (U, S, 2, heads, size).
    memory_keys_values: list[torch.Tensor]
    memory_mask: torch.Tensor  # (U, 1, 1, S) additive
    # By bucket of new nodes and of attended slots.
    calls: dict[tuple[int, int], CapturedCall] = field(default_factory=dict)
    user: weakref.ref | None = None  # the state that uses it

    @property
    def idle(self) -> bool:
        return self.user is None or self.user() is None

    @property
    def num_bytes(self) -> int:
        return self.cache.slots.nbytes + sum(part.nbytes for part in self.memory_keys_values)


@dataclass
class CudaGraphState(TreeState):
    storage: Storage | None = None


class CudaGraphWhisperRuntime(WhisperRuntime):
    """A ``WhisperRuntime`` with one CUDA graph per bucket."""

    def __init__(self, decoder: WhisperMedusaDecoder, precision: Precision):
        super().__init__(decoder, precision)
        self.storages: dict[tuple, Storage] = {}  # least recently used first

    def start(self, memory, memory_lengths, with_heads=True) -> CudaGraphState:
        frames = round_up(memory.size(1), FRAME_STEP)
        memory = torch.nn.functional.pad(memory, (0, 0, 0, frames - memory.size(1)))
        state = super().start(memory, memory_lengths, with_heads)
        key = (*memory.shape, len(state.memory_keys_values))
        storage = self.storages.pop(key, None)
        if storage is None or not storage.idle:
            self._drop_idle()
            storage = self._make_storage(state)
        self.storages[key] = storage
        for fixed, new in zip(storage.memory_keys_values, state.memory_keys_values, strict=True):
            fixed.copy_(new)
        storage.memory_mask.zero_()
        if state.memory_mask is not None:
            storage.memory_mask.copy_(state.memory_mask)
        storage.cache.num_nodes = 0
        # Not `cross_keys_values`, because `select` moves the storage's rows.
        names = "cache", "memory_keys_values", "memory_mask"
        fixed = {name: getattr(storage, name) for name in names}
        state = CudaGraphState(**vars(state) | fixed, storage=storage)
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

    def _make_storage(self, state: TreeState) -> Storage:
        num_utterances, frames, _, *sizes = state.memory_keys_values[0].shape
        capacity = round_up(self.max_depth(0), FEWEST_SLOTS) + NODE_BUCKETS[-1]
        cache = StaticNodeCache(
            len(state.memory_keys_values), num_utterances, *sizes, self.dtype, self.device, capacity
        )
        mask = torch.zeros(num_utterances, 1, 1, frames, dtype=self.dtype, device=self.device)
        return Storage(cache, [torch.empty_like(part) for part in state.memory_keys_values], mask)

    def extend(self, state: CudaGraphState, tokens, parents) -> NodeOutputs:
        first, sizes = self._grow(state, tokens, parents)
        storage, cache = state.storage, state.cache
        width = bucket(max(sizes))
        if first + width > cache.capacity:
            cache.reserve(width)
            storage.calls.clear()  # growth moved the cache
        slots = min(slot_bucket(first + width), cache.capacity)
        shape = cache.slots.size(1), 1, width, slots
        inputs = padded_inputs(state.trees, first, tokens, shape)
        inputs = [staged(part, self.device) for part in inputs]
        call = storage.calls.get((width, slots))
        if call is None:
            fixed = (part.to(self.device, non_blocking=True) for part in inputs)
            call = storage.calls[width, slots] = CapturedCall(*fixed)
        for fixed, new in zip((call.numbers, call.places, call.visible), inputs, strict=True):
            fixed.copy_(new, non_blocking=True)
        rows = [row * width + place for row, size in enumerate(sizes) for place in range(size)]
        rows = upload(rows, self.device)
        self._run(call, state, slots)
        cache.commit(max(sizes))
        return NodeOutputs(call.outputs.hidden[rows], call.outputs.head_input[rows])

    def _run(self, call: CapturedCall, state: TreeState, slots: int) -> None:
        """Run a call; capture its graph first if there is none."""
        state.cache.places, state.cache.attended = call.places, slots
        if call.graph is not None:
            call.graph.replay()
        elif self.device.type != "cuda":
            call.outputs = self._compute_static(call, state)
        else:
            stream = torch.cuda.Stream(self.device)
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP_CALLS):
                    self._compute_static(call, state)
            torch.cuda.current_stream(self.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool()):
                call.outputs = self._compute_static(call, state)
            call.graph = graph  # only after a successful capture
            graph.replay()

    def _pool(self) -> tuple[int, int] | None:
        """Return the memory pool of all graphs, or None if there is no graph.

        Graphs can share it because outputs are read before another graph runs. torch rejects a
        pool whose graphs have all been freed.
        """
        calls = (call for storage in self.storages.values() for call in storage.calls.values())
        return next((call.graph.pool() for call in calls if call.graph is not None), None)

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
        for part in [*state.memory_keys_values, state.memory_mask]:
            part[: len(utterances)] = part[rows]


def padded_inputs(
    trees: Sequence[TokenTree], first: int, tokens: Sequence[Sequence[int]], shape: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the inputs of a ``CapturedCall`` for new nodes, which start at slot ``first``.

    ``shape`` is that of ``visible``. It may have room for padding, which attends only to itself.
    """
    num_utterances, _, width, _ = shape
    numbers = np.zeros((2, num_utterances, width), dtype=np.int64)
    visible = np.zeros(shape, dtype=bool)
    visible[:, 0, np.arange(width), first + np.arange(width)] = True
    for row, (tree, new_tokens) in enumerate(zip(trees, tokens, strict=True)):
        numbers[0, row, : len(new_tokens)] = new_tokens
        numbers[1, row, : len(new_tokens)] = depths(tree, first, len(new_tokens))
    of_trees = visibility(trees, first)
    visible[: len(trees), 0, : of_trees.shape[1], : of_trees.shape[2]] |= of_trees
    return numbers.reshape(2, -1), first + np.arange(width), visible


def bucket(num_nodes: int) -> int:
    """Return the smallest bucket for these new nodes; above the largest, a multiple of it."""
    larger = (size for size in NODE_BUCKETS if size >= num_nodes)
    return next(larger, round_up(num_nodes, NODE_BUCKETS[-1]))


def slot_bucket(num_slots: int) -> int:
    """Return the smallest of 64, 128, 256, ... attended slots that is large enough."""
    return max(FEWEST_SLOTS, 1 << (num_slots - 1).bit_length())


def round_up(number: int, step: int) -> int:
    """Return the smallest multiple of ``step`` that is not below ``number``."""
    return -(-number // step) * step
