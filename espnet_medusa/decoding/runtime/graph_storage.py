"""Tensors with fixed addresses for CUDA graphs; calls are padded to a few sizes (buckets)."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from espnet_medusa.decoding.runtime.chain_graph import ChainGraphs
from espnet_medusa.decoding.runtime.graph import GraphMemory, Replayed
from espnet_medusa.decoding.runtime.heads import PackedCrossKeysValues
from espnet_medusa.decoding.runtime.layer import PackedLayer
from espnet_medusa.decoding.runtime.tree_runtime import depths
from espnet_medusa.decoding.tree.node_cache import NodeCache
from espnet_medusa.decoding.tree.token_tree import TokenTree, staged, upload, visibility
from espnet_medusa.networks.masks import padding_mask

NODE_BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
FEWEST_SLOTS = 64
INTEGER_BYTES = 8


class StaticNodeCache(NodeCache):
    """A cache that writes to the slots in ``places`` and reads a fixed number of slots."""

    # (U T,) slots of the new nodes among all slots (U capacity); U may be fewer than all rows.
    places: torch.Tensor
    attended: int  # number of slots that are read, including the new ones

    def write(self, layer: int, keys_values: torch.Tensor) -> torch.Tensor:
        slots = self.slots[layer]
        slots.flatten(0, 1).index_copy_(0, self.places, keys_values.flatten(0, 1))
        return slots[: len(keys_values), : self.attended]

    def select(self, utterances: Sequence[int]) -> None:
        self.slots[:, : len(utterances)] = self.slots[:, upload(utterances, self.slots.device)]


class CapturedCall:
    """The call of one bucket: its inputs, which are views of one block, and its graph.

    Args:
        shape: U, 1, T, N: utterances, new nodes of each, and attended slots.

    Attributes:
        numbers: (2, U T) token ids and positions.
        rows: (U T,) rows of the outputs that are nodes, then padding.
        places: (U T,) slots, as in ``StaticNodeCache``.
        visible: (U, 1, T, N) bool, which nodes each new node attends to.
    """

    def __init__(self, shape: tuple[int, int, int, int], replayed: Replayed):
        utterances, _, width, _ = shape
        self.replayed = replayed
        sizes = [count * utterances * width for count in (2, 1, 1)]
        num_bytes = [*(INTEGER_BYTES * size for size in sizes), math.prod(shape)]
        self.block = torch.empty(sum(num_bytes), dtype=torch.uint8, device=replayed.device)
        *numbers, visible = self.block.split(num_bytes)
        numbers, self.rows, self.places = (part.view(torch.long) for part in numbers)
        self.numbers = numbers.view(2, -1)
        self.visible = visible.view(torch.bool).view(shape)

    def write(self, *inputs: np.ndarray) -> None:
        """Copy numbers, rows, places and visibility from the host."""
        block = np.concatenate([part.reshape(-1).view(np.uint8) for part in inputs])
        self.block.copy_(staged(block, self.block.device), non_blocking=True)


class Storage:
    """Memory of searches of one size; one search uses it at a time.

    Args:
        encoder_out: (U, S, D) encoder output of this size.
        positions: Positions of the decoder.
        cross_attention: Whether heads attend to the encoder output.

    Attributes:
        cache: Self-attention keys and values.
        encoder_keys_values: Per layer, cross-attention keys and values (U, S, 2, heads, size).
        encoder_out_mask: (U, 1, 1, S) additive.
        cross_keys_values: The last layer's and a mask, for such heads. They are copies, because
            ``CudaGraphWhisperRuntime.select`` moves rows.
        calls: By bucket of new nodes and of attended slots.
        loops: ``LoopGraphs`` by heads and rules.
        user: The state of the search.
    """

    def __init__(
        self,
        encoder_out: torch.Tensor,
        layers: Sequence[PackedLayer],
        positions: int,
        cross_attention: bool,
        graph_memory: GraphMemory,
    ):
        (utterances, frames, _), heads = (
            encoder_out.shape,
            (layers[0].num_heads, layers[0].head_size),
        )
        capacity = first_capacity(positions)
        shape = len(layers), utterances, *heads
        self.cache = StaticNodeCache(*shape, encoder_out.dtype, encoder_out.device, capacity)
        shape = utterances, frames, 2, *heads
        self.encoder_keys_values = [encoder_out.new_empty(shape) for _ in layers]
        self.encoder_out_mask = encoder_out.new_zeros(utterances, 1, 1, frames)
        self.cross_keys_values = None
        if cross_attention:
            copies = encoder_out.new_empty(shape), self.encoder_out_mask.clone()
            chains = ChainGraphs(graph_memory)
            self.cross_keys_values = PackedCrossKeysValues(*copies, utterances, chains)
        self.layers, self.graph_memory = layers, graph_memory
        self.calls: dict[tuple[int, int], CapturedCall] = {}
        self.loops: dict[tuple, Any] = {}
        self.user: weakref.ref | None = None

    def load(
        self, encoder_out: torch.Tensor, encoder_out_lens: torch.Tensor, with_heads: bool
    ) -> None:
        """Begin a search with this encoder output.

        Keys and values are copied layer by layer, so that only one layer's exist twice.
        """
        mask = padding_mask(encoder_out, encoder_out_lens)
        self.encoder_out_mask.copy_(
            torch.zeros_like(self.encoder_out_mask) if mask is None else mask
        )
        for layer, keys_values in zip(self.layers, self.encoder_keys_values, strict=True):
            keys_values.copy_(layer.project_encoder_out(encoder_out))
        if with_heads and self.cross_keys_values is not None:
            self.cross_keys_values.keys_values.copy_(self.encoder_keys_values[-1])
            self.cross_keys_values.mask.copy_(self.encoder_out_mask)
        self.cache.num_nodes = 0
        self.cache.slots.zero_()  # masked slots count, too, if they hold NaN

    def take(self, other: Storage, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy rows of utterances from this or another storage with as many frames."""
        rows = upload([sources, targets], self.cache.slots.device)
        for part, of_other in zip(self._rows(), other._rows(), strict=True):
            slots = min(part.size(1), of_other.size(1))  # the caches' sizes may differ
            part[rows[1], :slots] = of_other[rows[0], :slots]

    def _rows(self) -> list[torch.Tensor]:
        """Return all tensors (U, ...)."""
        parts = [*self.cache.slots.unbind(), *self.encoder_keys_values, self.encoder_out_mask]
        if self.cross_keys_values is not None:
            parts += [self.cross_keys_values.keys_values, self.cross_keys_values.mask]
        return parts

    def reserve(self, num_new: int) -> None:
        """Grow the cache for so many new nodes; growth moves it, so that graphs become invalid."""
        capacity = self.cache.capacity
        self.cache.reserve(num_new)
        if self.cache.capacity > capacity:
            self.calls.clear()
            self.loops.clear()

    def call(self, first: int, count: int) -> CapturedCall:
        """Return the call for up to ``count`` new nodes per utterance, from slot ``first`` on."""
        cache, width = self.cache, bucket(count)
        self.reserve(width)
        slots = min(slot_bucket(first + width), cache.capacity)
        if (width, slots) not in self.calls:
            replayed = Replayed(self.graph_memory, cache.slots.device)
            shape = cache.slots.size(1), 1, width, slots
            self.calls[width, slots] = CapturedCall(shape, replayed)
        return self.calls[width, slots]

    @property
    def idle(self) -> bool:
        return self.user is None or self.user() is None

    @property
    def num_bytes(self) -> int:
        parts = [self.cache.slots, *self.encoder_keys_values]
        if self.cross_keys_values is not None:
            parts.append(self.cross_keys_values.keys_values)
        return sum(part.nbytes for part in parts)


def padded_inputs(
    trees: Sequence[TokenTree],
    first: int,
    tokens: Sequence[Sequence[int]],
    shape: Sequence[int],
    capacity: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the inputs of ``CapturedCall.write`` for new nodes, which start at slot ``first``.

    ``shape`` is that of ``visible``. It may have room for padding, which attends only to itself.
    ``capacity`` is the cache's.
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
    rows = np.zeros(num_utterances * width, dtype=np.int64)
    nodes = [row * width + place for row, new in enumerate(tokens) for place in range(len(new))]
    rows[: len(nodes)] = nodes
    places = first + np.arange(width) + capacity * np.arange(num_utterances)[:, None]
    return numbers, rows, places, visible


def bucket(num_nodes: int) -> int:
    """Return the smallest bucket for these new nodes; above the largest, a multiple of it."""
    larger = (size for size in NODE_BUCKETS if size >= num_nodes)
    return next(larger, round_up(num_nodes, NODE_BUCKETS[-1]))


def slot_bucket(num_slots: int) -> int:
    """Return the smallest of 64, 128, 256, ... attended slots that is large enough."""
    return max(FEWEST_SLOTS, 1 << (num_slots - 1).bit_length())


def first_capacity(positions: int) -> int:
    """Return the slots of a new storage, for a decoder with so many positions."""
    return round_up(positions, FEWEST_SLOTS) + NODE_BUCKETS[-1]


def round_up(number: int, step: int) -> int:
    """Return the smallest multiple of ``step`` that is not below ``number``."""
    return -(-number // step) * step
