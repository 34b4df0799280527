"""Decoder calls as CUDA graphs: launched at once, not kernel by kernel.

A graph repeats the same kernels on the same addresses. So calls are padded to a few sizes
(buckets), and what they read and write stays where it is: one storage for all searches of as many
utterances and frames. Without CUDA the same fixed shapes run kernel by kernel, which is how they
are tested where there is no GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from espnet_medusa.model.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.runtime.layer import Packing
from espnet_medusa.runtime.precision import Precision
from espnet_medusa.runtime.tree_runtime import depths
from espnet_medusa.runtime.whisper import WhisperRuntime
from espnet_medusa.tree.node_cache import NodeCache
from espnet_medusa.tree.token_tree import TokenTree, visibility
from espnet_medusa.tree.tree_decoder import NodeOutputs, TreeState
from espnet_medusa.tree.upload import staged, upload

NODE_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
FEWEST_SLOTS = 64
FRAME_STEP = 128
WARM_UP_CALLS = 2
IDLE_BYTES = 2 << 30  # of storages that nobody uses: batches of other sizes need the room


class FixedNodeCache(NodeCache):
    """A cache that writes to and reads from slots which a tensor names.

    Attributes:
        places: (T,) slots of the new nodes.
        attended: Slots that are read, those written included.
    """

    places: torch.Tensor
    attended: int

    def write(self, layer: int, keys_values: torch.Tensor) -> torch.Tensor:
        slots = self.slots[layer]
        slots.index_copy_(1, self.places, keys_values)
        return slots[:, : self.attended]

    def select(self, utterances: Sequence[int]) -> None:
        self.slots[:, : len(utterances)] = self.slots[:, upload(utterances, self.slots.device)]


@dataclass
class Inputs:
    """What a captured call reads.

    Attributes:
        numbers: (2, U T) token ids and positions.
        places: (T,) slots of the new nodes.
        visible: (U, 1, T, N) bool, who attends to whom.
    """

    numbers: torch.Tensor
    places: torch.Tensor
    visible: torch.Tensor


@dataclass
class CapturedCall:
    """A call of one bucket.

    Attributes:
        inputs: To be filled before.
        outputs: Filled by it.
        graph: None without CUDA.
    """

    inputs: Inputs
    outputs: NodeOutputs | None = None
    graph: torch.cuda.CUDAGraph | None = None


@dataclass
class Storage:
    """Where states of one size live, one after the other.

    Attributes:
        cache: Keys and values of nodes.
        memory: Per layer, (U, S, 2, heads, size).
        memory_mask: (U, 1, 1, S) additive.
        calls: CapturedCall ones, by new nodes and attended slots.
        user: The state that lives here now.
    """

    cache: FixedNodeCache
    memory: list[torch.Tensor]
    memory_mask: torch.Tensor
    calls: dict[tuple[int, int], CapturedCall] = field(default_factory=dict)
    user: weakref.ref | None = None

    @property
    def idle(self) -> bool:
        """Whether no state lives here."""
        return self.user is None or self.user() is None

    @property
    def num_bytes(self) -> int:
        """Of keys and values."""
        return self.cache.slots.nbytes + sum(part.nbytes for part in self.memory)


@dataclass
class CudaGraphState(TreeState):
    """A state that lives in a storage.

    Attributes:
        storage: Shared with states before and after it.
    """

    storage: Storage | None = None


class CudaGraphWhisperRuntime(WhisperRuntime):
    """``WhisperRuntime`` whose calls are CUDA graphs, one for each bucket.

    Args:
        decoder: The trained module.
        precision: What to compute in.
    """

    def __init__(self, decoder: WhisperMedusaDecoder, precision: Precision):
        super().__init__(decoder, precision)
        self.storages: dict[tuple, Storage] = {}  # the last used one stands last

    def start(
        self, memory: torch.Tensor, memory_lengths: torch.Tensor, with_heads: bool = True
    ) -> CudaGraphState:
        frames = round_up(memory.size(1), FRAME_STEP)
        memory = torch.nn.functional.pad(memory, (0, 0, 0, frames - memory.size(1)))
        state = super().start(memory, memory_lengths, with_heads)
        key = (*memory.shape, len(state.memory))
        storage = self.storages.pop(key, None)
        if storage is None or not storage.idle:
            self._drop_idle()
            storage = self._make_storage(state)
        self.storages[key] = storage
        for fixed, new in zip(storage.memory, state.memory, strict=True):
            fixed.copy_(new)
        storage.memory_mask.zero_()
        if state.memory_mask is not None:
            storage.memory_mask.copy_(state.memory_mask)
        storage.cache.num_nodes = 0
        state = CudaGraphState(
            state.trees,
            storage.cache,
            storage.memory,
            storage.memory_mask,
            with_heads,
            state.offsets,
            # Not in the storage, whose rows move up when utterances leave.
            cross_keys_values=state.cross_keys_values,
            storage=storage,
        )
        storage.user = weakref.ref(state)
        return state

    def _drop_idle(self) -> None:
        """Give back what has been idle longest, until the rest is little."""
        idle = [key for key, storage in self.storages.items() if storage.idle]
        num_bytes = sum(self.storages[key].num_bytes for key in idle)
        for key in idle:
            if num_bytes <= IDLE_BYTES:
                return
            num_bytes -= self.storages.pop(key).num_bytes

    def _make_storage(self, state: TreeState) -> Storage:
        num_utterances, frames, _, *sizes = state.memory[0].shape
        capacity = round_up(self.max_depth(0), FEWEST_SLOTS) + NODE_BUCKETS[-1]
        cache = FixedNodeCache(
            len(state.memory), num_utterances, *sizes, self.dtype, self.device, capacity
        )
        mask = torch.zeros(num_utterances, 1, 1, frames, dtype=self.dtype, device=self.device)
        return Storage(cache, [torch.empty_like(part) for part in state.memory], mask)

    def extend(
        self,
        state: CudaGraphState,
        tokens: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]],
    ) -> NodeOutputs:
        first, sizes = self._grow(state, tokens, parents)
        storage, cache = state.storage, state.cache
        width = bucket(max(sizes))
        if first + width > cache.capacity:
            cache.reserve(width)
            storage.calls.clear()  # their addresses are gone
        slots = min(slot_bucket(first + width), cache.capacity)
        call = storage.calls.get((width, slots))
        if call is None:
            call = storage.calls[width, slots] = self._make_call(storage, width, slots)
        fill(call.inputs, state.trees, first, tokens)
        rows = [row * width + place for row, size in enumerate(sizes) for place in range(size)]
        rows = upload(rows, self.device)
        self._run(call, state, slots)
        cache.commit(max(sizes))
        return NodeOutputs(call.outputs.hidden[rows], call.outputs.head_input[rows])

    def _make_call(self, storage: Storage, width: int, slots: int) -> CapturedCall:
        num_utterances = storage.cache.slots.size(1)
        numbers = torch.zeros(2, num_utterances * width, dtype=torch.long, device=self.device)
        places = torch.zeros(width, dtype=torch.long, device=self.device)
        shape = num_utterances, 1, width, slots
        visible = torch.zeros(shape, dtype=torch.bool, device=self.device)
        return CapturedCall(Inputs(numbers, places, visible))

    def _run(self, call: CapturedCall, state: TreeState, slots: int) -> None:
        """Compute the call's outputs; the first time on CUDA, capture how."""
        state.cache.places, state.cache.attended = call.inputs.places, slots
        if call.graph is not None:
            call.graph.replay()
        elif self.device.type != "cuda":
            call.outputs = self._compute_fixed(call.inputs, state)
        else:
            stream = torch.cuda.Stream(self.device)
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP_CALLS):
                    self._compute_fixed(call.inputs, state)
            torch.cuda.current_stream(self.device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool()):
                call.outputs = self._compute_fixed(call.inputs, state)
            call.graph = graph  # only now: what failed to be captured cannot be replayed
            graph.replay()

    def _pool(self) -> tuple[int, int] | None:
        """Memory of all graphs: what one computes is read before another one runs.

        None where there is no graph: torch takes no pool whose graphs are all gone.
        """
        calls = (call for storage in self.storages.values() for call in storage.calls.values())
        return next((call.graph.pool() for call in calls if call.graph is not None), None)

    def _compute_fixed(self, inputs: Inputs, state: TreeState) -> NodeOutputs:
        num_utterances, _, width, _ = inputs.visible.shape
        mask = torch.zeros(inputs.visible.shape, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill(~inputs.visible, -torch.inf)
        packing = Packing([width] * num_utterances, None)
        return self._compute(state, *inputs.numbers.unbind(), mask, packing)

    def select(self, state: CudaGraphState, utterances: Sequence[int]) -> None:
        """Drop all utterances but these; others' rows go on idle: shapes are fixed."""
        state.trees = [state.trees[row] for row in utterances]
        state.offsets = [state.offsets[row] for row in utterances]
        state.cache.select(utterances)
        rows = upload(utterances, self.device)
        for part in [*state.memory, state.memory_mask]:
            part[: len(utterances)] = part[rows]


def fill(
    inputs: Inputs, trees: Sequence[TokenTree], first: int, tokens: Sequence[Sequence[int]]
) -> None:
    """Hand a call its nodes; places without one see themselves alone.

    Args:
        inputs: Of U utterances or more, and as many nodes or more.
        trees: The new nodes are in them.
        first: Slot of the first one.
        tokens: Of the new nodes.
    """
    num_utterances, _, width, slots = inputs.visible.shape
    numbers = np.zeros((2, num_utterances, width), dtype=np.int64)
    visible = np.zeros((num_utterances, 1, width, slots), dtype=bool)
    visible[:, 0, np.arange(width), first + np.arange(width)] = True
    for row, (tree, of_row) in enumerate(zip(trees, tokens, strict=True)):
        numbers[0, row, : len(of_row)] = of_row
        numbers[1, row, : len(of_row)] = depths(tree, first, len(of_row))
    seen = visibility(trees, first)
    visible[: len(trees), 0, : seen.shape[1], : seen.shape[2]] |= seen
    for fixed, new in (
        (inputs.numbers, numbers.reshape(2, -1)),
        (inputs.places, first + np.arange(width)),
        (inputs.visible, visible),
    ):
        fixed.copy_(staged(new, fixed.device), non_blocking=True)


def bucket(num_nodes: int) -> int:
    """The least bucket that holds so many new nodes; beyond the largest, multiples of it."""
    found = next((size for size in NODE_BUCKETS if size >= num_nodes), None)
    return found if found is not None else round_up(num_nodes, NODE_BUCKETS[-1])


def slot_bucket(num_slots: int) -> int:
    """Attended slots come in few numbers: 64, 128, 256, 512, ..."""
    size = FEWEST_SLOTS
    while size < num_slots:
        size *= 2
    return size


def round_up(number: int, step: int) -> int:
    """The least multiple of ``step`` that is not smaller."""
    return -(-number // step) * step
