"""One Whisper decoder layer over new nodes, with cached keys and values (inference)."""

from dataclasses import dataclass

import torch

from espnet_medusa.decoder.tree_decoder import TreeState


def attend_memory(
    layer: torch.nn.Module, memory: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-attention keys and values (U, heads, S, size) of memory (U, S, D)."""
    attention = layer.encoder_attn
    return (
        split_attention_heads(attention.k_proj(memory), attention.num_heads),
        split_attention_heads(attention.v_proj(memory), attention.num_heads),
    )


@dataclass(frozen=True)
class Packing:
    """Rows of nodes without the padding of utterances that have fewer.

    Attributes:
        present: (U, T) bool; None where nothing is padded.
        shape: U, T.
    """

    present: torch.Tensor | None
    shape: tuple[int, int]

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """(U, T, D) to (R, D), R the nodes that are there."""
        return padded.flatten(0, 1) if self.present is None else padded[self.present]

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """(R, D) to (U, T, D), zeros where nothing is."""
        if self.present is None:
            return packed.unflatten(0, self.shape)
        padded = packed.new_zeros(*self.shape, packed.size(-1))
        padded[self.present] = packed
        return padded


def extend_layer(
    layer: torch.nn.Module,
    index: int,
    hidden: torch.Tensor,
    visible: torch.Tensor,
    packing: Packing,
    state: TreeState,
) -> torch.Tensor:
    """Run a ``transformers`` WhisperDecoderLayer on new nodes.

    Args:
        layer: The layer.
        index: Its index in the cache.
        hidden: (R, D), packed: only attention needs to know whose nodes they are.
        visible: (U, T, N + T) bool, who attends to whom.
        packing: Where the R nodes stand among (U, T).
        state: Gets the layer's new keys and values.

    Returns:
        (R, D).
    """

    def attend(attention, normed, keys, values, mask):
        queries = split_attention_heads(
            packing.unpack(attention.q_proj(normed)), attention.num_heads
        )
        attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, mask)
        return attention.out_proj(packing.pack(attended.transpose(1, 2).flatten(2)))

    attention = layer.self_attn
    normed = layer.self_attn_layer_norm(hidden)
    keys, values = (
        split_attention_heads(packing.unpack(project(normed)), attention.num_heads)
        for project in (attention.k_proj, attention.v_proj)
    )
    keys, values = state.cache.write(index, keys, values)
    # A lone node of a lone chain sees every node: no mask lets faster kernels run.
    mask = None if packing.shape == (1, 1) and bool(visible.all()) else visible[:, None]
    hidden = hidden + attend(attention, normed, keys, values, mask)

    keys, values = state.memory[index]
    normed = layer.encoder_attn_layer_norm(hidden)
    hidden = hidden + attend(layer.encoder_attn, normed, keys, values, state.memory_mask)

    normed = layer.final_layer_norm(hidden)
    return hidden + layer.fc2(layer.activation_fn(layer.fc1(normed)))


def split_attention_heads(projected: torch.Tensor, num_heads: int) -> torch.Tensor:
    """(U, T, D) to (U, heads, T, D / heads)."""
    return projected.unflatten(-1, (num_heads, -1)).transpose(1, 2)
