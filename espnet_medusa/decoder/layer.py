"""One Whisper decoder layer over new nodes, with cached keys and values (inference)."""

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


def extend_layer(
    layer: torch.nn.Module,
    index: int,
    hidden: torch.Tensor,
    visible: torch.Tensor,
    state: TreeState,
) -> torch.Tensor:
    """Run a ``transformers`` WhisperDecoderLayer on new nodes.

    Args:
        layer: The layer.
        index: Its index in the cache.
        hidden: (U, T, D).
        visible: (U, T, N + T) bool, who attends to whom.
        state: Gets the layer's new keys and values.

    Returns:
        (U, T, D).
    """
    attention = layer.self_attn
    normed = layer.self_attn_layer_norm(hidden)
    keys = split_attention_heads(attention.k_proj(normed), attention.num_heads)
    values = split_attention_heads(attention.v_proj(normed), attention.num_heads)
    keys, values = state.cache.write(index, keys, values)
    # A lone node of a lone chain sees every node: no mask lets faster kernels run.
    mask = None if hidden.shape[:2] == (1, 1) and bool(visible.all()) else visible[:, None]
    hidden = hidden + _attend(attention, normed, keys, values, mask)

    attention = layer.encoder_attn
    keys, values = state.memory[index]
    normed = layer.encoder_attn_layer_norm(hidden)
    hidden = hidden + _attend(attention, normed, keys, values, state.memory_mask)

    normed = layer.final_layer_norm(hidden)
    return hidden + layer.fc2(layer.activation_fn(layer.fc1(normed)))


def split_attention_heads(projected: torch.Tensor, num_heads: int) -> torch.Tensor:
    """(U, T, D) to (U, heads, T, D / heads)."""
    return projected.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _attend(
    attention: torch.nn.Module,
    hidden: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    queries = split_attention_heads(attention.q_proj(hidden), attention.num_heads)
    attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, mask)
    return attention.out_proj(attended.transpose(1, 2).flatten(2))
