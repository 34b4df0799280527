"""Heads with a state that each drafted token advances.

Recurrent heads are similar to Hydra heads (Ankner et al., arXiv 2402.05109) and ReDrafter (Zhang et
al., arXiv 2403.09919). Attending heads are similar to EAGLE (Li et al., arXiv 2401.15077), whose
draft layer reads the last state and the last token. Attending heads have cross-attention to the
encoder output instead of attention to earlier tokens, which the state already summarizes.
"""

import copy
from abc import abstractmethod

import torch
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from espnet_medusa.data.errors import InputError
from espnet_medusa.networks.heads.base import CrossKeysValues, HeadOptions, Heads, Trunk
from espnet_medusa.networks.heads.parallel import ResidualLayers

MOMENTS = "moments"
MOMENTS_SHARE = 0.01  # of the last batch


class AutoregressiveHeads(Heads):
    """Heads that share one step: ``state_k = advance(state_(k-1), embedding of token k)``.

    ``state_0`` is the heads' input at a node, token k the one k positions after it. K is the number
    of trained steps; drafts may be longer.
    """

    @abstractmethod
    def advance(
        self,
        states: torch.Tensor,
        embedded: torch.Tensor,
        cross_keys_values: CrossKeysValues | None = None,
    ) -> torch.Tensor:
        """Advance states (B, L, D) by one token with embeddings (B, L, D)."""

    @abstractmethod
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the input (..., D) of the vocabulary projection for advanced states (..., D)."""

    def unroll(self, head_input, labels, embed, cross_keys_values=None):
        states, embedded = head_input, embed(labels)
        for step in range(1, self.num_heads + 1):
            length = max(labels.size(1) - step, 0)
            tokens = embedded[:, step - 1 : step - 1 + length]
            states = self.advance(states[:, :length], tokens, cross_keys_values)
            yield self(states)


class RecurrentHeads(AutoregressiveHeads):
    """A recurrent cell and residual layers, shared by all steps."""

    def __init__(self, trunk: Trunk, options: HeadOptions):
        super().__init__(trunk, options, options.own_block is not False)
        self.cell = RecurrentCell(trunk.hidden_size)
        self.output = ResidualLayers(trunk.hidden_size, options.num_layers)
        if options.base_head:
            self.base = ResidualLayers(trunk.hidden_size, options.num_layers)

    @property
    def trained(self) -> bool:
        return self.output.trained

    def advance(self, states, embedded, cross_keys_values=None):
        return self.cell(states, embedded)

    def forward(self, states):
        return self.output(states)


class RecurrentCell(torch.nn.Module):
    """``state + W_2 SiLU(W_1 norm(state) + U embedding + b) + c``; W_2 and c start at zero."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.norm = torch.nn.LayerNorm(hidden_size)
        self.inner = torch.nn.Linear(2 * hidden_size, 2 * hidden_size)
        self.outer = torch.nn.Linear(2 * hidden_size, hidden_size)
        torch.nn.init.zeros_(self.outer.weight)
        torch.nn.init.zeros_(self.outer.bias)

    def forward(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Map (..., D) and (..., D) to (..., D)."""
        joined = torch.cat([self.norm(states), embedded], dim=-1)
        return states + self.outer(silu(self.inner(joined)))


class AttendingHeads(AutoregressiveHeads):
    """A decoder layer without self-attention, shared by all steps.

    ``advance(s, e)`` is ``layer(n + fuse(n, norm(e)))`` with n = norm(s). The layer starts as a
    copy of the decoder's last one and shares its cross-attention keys and values. Raise InputError
    if the decoder has no cross-attention.

    Attributes:
        moments: (D, D) second moments of the outputs without the bias of ``norm``, over the last
            training batches, with a trace of D; zeros before training. The kernels' shortlist is
            built from it.
    """

    allowed = "num_heads", "dropout"
    uses_cross_attention = True

    def __init__(self, trunk: Trunk, options: HeadOptions):
        if not hasattr(trunk.last_layer, "encoder_attn"):
            raise InputError(
                "decoder_conf.heads: attending; they require a decoder with cross-attention; "
                "allowed here: linear, block, recurrent, projection, latent"
            )
        super().__init__(trunk, options)
        size = trunk.hidden_size
        self.state_norm, self.token_norm = torch.nn.LayerNorm(size), torch.nn.LayerNorm(size)
        self.fuse = torch.nn.Linear(2 * size, size)
        torch.nn.init.zeros_(self.fuse.weight)
        torch.nn.init.zeros_(self.fuse.bias)
        self.layer = copy.deepcopy(trunk.last_layer).requires_grad_(True)
        del self.layer.self_attn, self.layer.self_attn_layer_norm
        del self.layer.encoder_attn.k_proj, self.layer.encoder_attn.v_proj
        self.dropout = torch.nn.Dropout(options.dropout)
        norm = torch.nn.LayerNorm(size) if trunk.norm is None else copy.deepcopy(trunk.norm)
        self.norm = norm.requires_grad_(True)
        self.register_buffer(MOMENTS, torch.zeros(size, size))

    @property
    def trained(self) -> bool:
        return bool(self.fuse.weight.any())

    @torch.no_grad()
    def observe(self, outputs):
        outputs = torch.cat(outputs).float() - self.norm.bias
        moments = outputs.T @ outputs
        moments *= len(moments) / moments.trace()
        if moments.isfinite().all():
            self.moments.lerp_(moments, MOMENTS_SHARE if self.moments.any() else 1.0)

    def advance(self, states, embedded, cross_keys_values=None):
        layer, attention = self.layer, self.layer.encoder_attn
        states, embedded = self.state_norm(states), self.token_norm(embedded)
        hidden = states + self.dropout(self.fuse(torch.cat([states, embedded], dim=-1)))
        queries = attention.q_proj(layer.encoder_attn_layer_norm(hidden))
        queries = queries.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        attended = scaled_dot_product_attention(queries, *cross_keys_values)
        hidden = hidden + self.dropout(attention.out_proj(attended.transpose(1, 2).flatten(2)))
        inner = gelu(layer.fc1(layer.final_layer_norm(hidden)))
        return hidden + self.dropout(layer.fc2(inner))

    def forward(self, states):
        return self.norm(states)
