"""Heads that listen while they draft: a decoder layer that attends to the audio at every step.

Kin: EAGLE (Li et al., arXiv 2401.15077), whose draft layer reads the last state and the token
drafted last; here it reads the audio, too, in the place of the tokens before, which the state
has seen.
"""

import copy

import torch
from torch.nn.functional import gelu, scaled_dot_product_attention

from espnet_medusa.errors import InputError
from espnet_medusa.model.heads.base import CrossKeysValues, HeadOptions, Heads, Trunk


class AttendingHeads(Heads):
    """A decoder layer without self-attention, shared by all steps.

    ``state_0`` is the last hidden state of an evaluated node, ``state_k = layer(s + fuse(s, e))``
    with ``s`` and ``e`` the normalized ``state_(k-1)`` and embedding of the token k behind the
    node; a norm and the shared projection make logits of a state. The layer starts as a copy of
    the decoder's last one, whose keys and values of the audio it shares. K is how many steps are
    trained; drafts may go further.

    Args:
        trunk: What they stand on.
        options: K and dropout.

    Raises:
        InputError: An option that only other heads have, or a decoder without cross-attention.
    """

    listens = True

    def __init__(self, trunk: Trunk, options: HeadOptions):
        allowed = HeadOptions(num_heads=options.num_heads, dropout=options.dropout)
        if options != allowed:
            raise InputError(
                f"decoder_conf.heads_conf: {options}; allowed with heads: attending: num_heads "
                "and dropout"
            )
        if not hasattr(trunk.last_layer, "encoder_attn"):
            raise InputError(
                "decoder_conf.heads: attending; they need decoder: whisper_medusa, whose layers "
                "attend to the audio; allowed here: linear, recurrent, projection, latent"
            )
        super().__init__(trunk, options)
        size = trunk.hidden_size
        self.state_norm, self.token_norm = torch.nn.LayerNorm(size), torch.nn.LayerNorm(size)
        self.fuse = torch.nn.Linear(2 * size, size)
        torch.nn.init.zeros_(self.fuse.weight)
        torch.nn.init.zeros_(self.fuse.bias)
        self.layer = without_self_attention(trunk.last_layer)
        self.dropout = torch.nn.Dropout(options.dropout)
        norm = torch.nn.LayerNorm(size) if trunk.norm is None else copy.deepcopy(trunk.norm)
        self.norm = norm.requires_grad_(True)

    @property
    def trained(self) -> bool:
        return bool(self.fuse.weight.any())

    def advance(
        self, states: torch.Tensor, embedded: torch.Tensor, cross_keys_values: CrossKeysValues
    ) -> torch.Tensor:
        """One token further: states and that token's embeddings, (B, L, D) each, to (B, L, D)."""
        layer, attention = self.layer, self.layer.encoder_attn
        states, embedded = self.state_norm(states), self.token_norm(embedded)
        hidden = states + self.dropout(self.fuse(torch.cat([states, embedded], dim=-1)))
        queries = attention.q_proj(layer.encoder_attn_layer_norm(hidden))
        queries = queries.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        found = scaled_dot_product_attention(queries, *cross_keys_values)
        hidden = hidden + self.dropout(attention.out_proj(found.transpose(1, 2).flatten(2)))
        inner = gelu(layer.fc1(layer.final_layer_norm(hidden)))
        return hidden + self.dropout(layer.fc2(inner))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """What the vocabulary projection reads of states that were advanced: (..., D)."""
        return self.norm(states)

    def unroll(self, head_input, labels, embed, cross_keys_values=None):
        states, embedded = head_input, embed(labels)
        length = labels.size(1)
        for step in range(1, self.num_heads + 1):
            left = max(length - step, 0)
            read = embedded[:, step - 1 : step - 1 + left]
            states = self.advance(states[:, :left], read, cross_keys_values)
            yield self(states)


def without_self_attention(layer: torch.nn.Module) -> torch.nn.Module:
    """A copy of a ``transformers`` WhisperDecoderLayer: its own queries of the audio, no keys."""
    layer = copy.deepcopy(layer).requires_grad_(True)
    del layer.self_attn, layer.self_attn_layer_norm
    del layer.encoder_attn.k_proj, layer.encoder_attn.v_proj
    return layer
