"""One Whisper decoder layer over new nodes, with cached keys and values (inference)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch.nn.functional import scaled_dot_product_attention

from espnet_medusa.decoder.tree_decoder import TreeState
from espnet_medusa.runtime.linear import GELU, Norm, pack_linear, pack_module
from espnet_medusa.runtime.precision import Precision


@dataclass(frozen=True)
class Packing:
    """Rows of nodes without the padding of utterances that have fewer.

    Attributes:
        present: (U, T) bool; None where nothing is padded.
        shape: U, T.
    """

    present: torch.Tensor | None
    shape: tuple[int, int]

    @cached_property
    def first_rows(self) -> list[int]:
        """U + 1 packed rows: where each utterance's begin, and where they end."""
        utterances, width = self.shape
        if self.present is None:
            return [*range(0, utterances * width + 1, width)]
        return [0, *accumulate(self.present.sum(dim=1).tolist())]

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """(U, T, D) to (R, D), R the nodes that are there."""
        return padded.flatten(0, 1) if self.present is None else padded[self.present]

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """(R, D) to (U, T, D), zeros where nothing is."""
        if self.present is None:
            return packed.view(*self.shape, -1)
        padded = packed.new_zeros(*self.shape, packed.size(-1))
        padded[self.present] = packed
        return padded


class PackedLayer:
    """A ``transformers`` WhisperDecoderLayer with weights laid out for ``extend``.

    Queries, keys and values of self-attention are one matrix product, as are keys and values of
    the memory.

    Args:
        layer: Its weights; copied.
        precision: What to compute in.
    """

    def __init__(self, layer: torch.nn.Module, precision: Precision):
        dtype = precision.dtype
        own, cross = layer.self_attn, layer.encoder_attn
        self.num_heads, self.head_size = own.num_heads, own.head_dim
        self.own_norm = Norm(layer.self_attn_layer_norm, dtype)
        self.queries_keys_values = pack_linear(*join(own.q_proj, own.k_proj, own.v_proj), precision)
        self.own_output = pack_module(own.out_proj, precision)
        self.cross_norm = Norm(layer.encoder_attn_layer_norm, dtype)
        self.cross_queries = pack_module(cross.q_proj, precision)
        self.memory_keys_values = pack_linear(*join(cross.k_proj, cross.v_proj), precision)
        self.cross_output = pack_module(cross.out_proj, precision)
        self.feed_forward_norm = Norm(layer.final_layer_norm, dtype)
        self.inner = pack_module(layer.fc1, precision, GELU)
        self.outer = pack_module(layer.fc2, precision)

    def attend_memory(self, memory: torch.Tensor) -> torch.Tensor:
        """Cross-attention keys and values (U, S, 2, heads, size) of memory (U, S, D)."""
        keys_values = self.memory_keys_values(memory.flatten(0, 1))
        return keys_values.view(*memory.shape[:2], 2, self.num_heads, self.head_size)

    def extend(
        self,
        hidden: torch.Tensor,
        packing: Packing,
        index: int,
        mask: torch.Tensor | None,
        state: TreeState,
    ) -> torch.Tensor:
        """Run the layer on new nodes.

        Args:
            hidden: (R, D), packed: only attention needs to know whose nodes they are.
            packing: Where the R nodes stand among (U, T).
            index: The layer's place in cache and memory.
            mask: (U, 1, T, N + T) additive, who attends to whom; None: everybody to all.
            state: Gets the layer's new keys and values.

        Returns:
            (R, D).
        """
        width = packing.shape[1]
        joined = packing.unpack(self.queries_keys_values(self.own_norm(hidden)))
        joined = joined.view(-1, width, 3, self.num_heads, self.head_size)
        keys_values = state.cache.write(index, joined[:, :, 1:])
        attended = attend(joined[:, :, 0], keys_values, mask)
        hidden = self.own_output(packing.pack(attended), hidden)

        queries = packing.unpack(self.cross_queries(self.cross_norm(hidden)))
        queries = queries.view(-1, width, self.num_heads, self.head_size)
        attended = attend(queries, state.memory[index], state.memory_mask)
        hidden = self.cross_output(packing.pack(attended), hidden)
        return self.outer(self.inner(self.feed_forward_norm(hidden)), hidden)


class LayerStack:
    """Layers that run one after the other.

    Args:
        layers: Laid out.
    """

    def __init__(self, layers: Sequence[PackedLayer]):
        self.layers = layers

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> PackedLayer:
        return self.layers[index]

    def extend(
        self,
        hidden: torch.Tensor,
        packing: Packing,
        first: int,
        mask: torch.Tensor | None,
        state: TreeState,
    ) -> torch.Tensor:
        """As ``PackedLayer.extend``; ``first`` is the first layer's place in cache and memory."""
        for index, layer in enumerate(self.layers, first):
            hidden = layer.extend(hidden, packing, index, mask, state)
        return hidden


def attend(
    queries: torch.Tensor, keys_values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """(U, T, D) from queries (U, T, heads, size) and (U, N, 2, heads or groups of them, size)."""
    keys, values = keys_values.transpose(1, 3).unbind(2)
    grouped = keys.size(1) != queries.size(2)
    attended = scaled_dot_product_attention(
        queries.transpose(1, 2), keys, values, mask, enable_gqa=grouped
    )
    return attended.transpose(1, 2).flatten(2)


def join(*modules: torch.nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and biases of several matrix products with one input as those of one."""
    weight = torch.cat([module.weight for module in modules])
    biases = [
        weight.new_zeros(len(module.weight)) if module.bias is None else module.bias
        for module in modules
    ]
    return weight, torch.cat(biases)
