"""Decoder layers in kernels of our own (CPU, inference)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import addressof, c_int32, c_void_p
from dataclasses import dataclass

import torch

from espnet_medusa.runtime.layer import LayerStack, LayerWeights, Packing, join
from espnet_medusa.runtime.native.library import CallArguments, LayerArguments, kernels, pointer
from espnet_medusa.runtime.native.linear import NativeLinear
from espnet_medusa.runtime.native.norm import NativeNorm
from espnet_medusa.tree.token_tree import TokenTree
from espnet_medusa.tree.tree_decoder import TreeState

LANES = 16  # slots that the kernels look at together


@dataclass(frozen=True)
class NativeMemory:
    """Cross-attention keys and values in the kernels' layout, bfloat16.

    Attributes:
        packed: (U, heads, bytes).
        frames: S.
    """

    packed: torch.Tensor
    frames: int

    def __getitem__(self, utterances: torch.Tensor) -> NativeMemory:
        return NativeMemory(self.packed[utterances], self.frames)

    @staticmethod
    def pack(keys_values: torch.Tensor) -> NativeMemory:
        """Keys and values (U, S, 2, heads, size) that torch has computed."""
        keys_values = keys_values.float().contiguous()
        num_utterances, frames, _, *sizes = keys_values.shape
        packed = empty_memory(num_utterances, frames, *sizes)
        kernels().pack_memories(
            *(keys_values.data_ptr(), num_utterances, frames, *sizes),
            *(packed.data_ptr(), torch.get_num_threads()),
        )
        return NativeMemory(packed, frames)


def empty_memory(num_utterances: int, frames: int, num_heads: int, size: int) -> torch.Tensor:
    """Room for keys and values in the kernels' layout, (U, heads, bytes)."""
    num_bytes = kernels().memory_bytes(frames, size)
    return torch.empty(num_utterances, num_heads, num_bytes, dtype=torch.uint8)


class NativeLayer:
    """A decoder layer as ``NativeStack`` runs it.

    Weights in 8 bits, keys and values of the memory in bfloat16, all else in float32.

    Args:
        weights: Copied; normalization first, no ``concat``.
    """

    def __init__(self, weights: LayerWeights):
        own, cross = weights.own, weights.cross
        self.num_heads, self.head_size = weights.num_heads, weights.head_size
        norms = own.norm, cross.norm, weights.feed_forward_norm
        self.memory_keys_values = NativeLinear(*join(cross.keys, cross.values))
        self.linears = [
            NativeLinear(*join(own.queries, own.keys, own.values)),
            *(native(module) for module in (own.output, cross.queries, cross.output)),
            native(weights.inner, weights.activation),
            native(weights.outer),
        ]
        self.norms = [*map(NativeNorm, norms)]
        self.arguments = LayerArguments(*(part.arguments for part in self.norms + self.linears))

    def attend_memory(self, memory: torch.Tensor) -> NativeMemory:
        """Cross-attention keys and values of memory (U, S, D)."""
        memory = memory.float().contiguous()
        num_utterances, frames, _ = memory.shape
        packed = empty_memory(num_utterances, frames, self.num_heads, self.head_size)
        kernels().project_memory(
            *(self.memory_keys_values.arguments, memory.data_ptr(), num_utterances, frames),
            *(self.num_heads, packed.data_ptr(), torch.get_num_threads()),
        )
        return NativeMemory(packed, frames)


class NativeStack(LayerStack):
    """Layers whose ``extend`` is one call of the kernels.

    Args:
        layers: Copied.
    """

    def __init__(self, layers: Iterable[LayerWeights]):
        super().__init__([NativeLayer(layer) for layer in layers])
        arguments = [layer.arguments for layer in self.layers]
        self.arguments = (LayerArguments * len(self))(*arguments)

    def extend(
        self,
        hidden: torch.Tensor,
        packing: Packing,
        first: int,
        mask: torch.Tensor | None,
        state: TreeState,
    ) -> torch.Tensor:
        """As ``LayerStack``'s; ``mask`` is that of ``visible_bits``."""
        layer, slots = self.layers[0], state.cache.slots[first]
        memory = state.memory[first : first + len(self)]
        rows = packing.first_rows
        first_rows = (c_int32 * len(rows))(*rows)
        call = CallArguments(
            *(packing.shape[0], layer.num_heads, layer.head_size, addressof(first_rows)),
            *(None, slots.data_ptr(), slots.size(1), state.cache.num_nodes),
            *(pointer(mask), packing.shape[1], None, memory[0].frames),
            *(pointer(state.memory_mask), torch.get_num_threads()),
        )
        packed = (c_void_p * len(self))(*(part.packed.data_ptr() for part in memory))
        extended = torch.empty_like(hidden)
        kernels().extend_layers(
            *(self.arguments, len(self), call, packed, hidden.data_ptr(), extended.data_ptr())
        )
        return extended


def visible_bits(trees: Sequence[TokenTree], first: int) -> torch.Tensor:
    """(U, T, bytes) who is seen by the nodes from slot ``first`` on, a bit for each slot.

    Args:
        trees: U of one length.
        first: Slot of the first of T new nodes.
    """
    num_bytes = -(-len(trees[0]) // LANES) * LANES // 8
    rows = [bits.to_bytes(num_bytes, "little") for tree in trees for bits in tree.visible[first:]]
    seen = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)
    return seen.view(len(trees), -1, num_bytes)


def native(module: torch.nn.Linear, activation: str | None = None) -> NativeLinear:
    """``NativeLinear`` of a module's weights."""
    return NativeLinear(module.weight, module.bias, activation)
