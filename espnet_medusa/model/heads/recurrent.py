"""Recurrent heads, which see what was drafted.

Kin: Hydra heads (Ankner et al., arXiv 2402.05109) and ReDrafter (Zhang et al., arXiv 2403.09919).
"""

import torch

from espnet_medusa.model.heads.base import HeadOptions, Heads, Trunk
from espnet_medusa.model.heads.residual import ResidualLayers


class RecurrentHeads(Heads):
    """One small cell, shared by all steps, that sees the token drafted last.

    ``state_0`` is the heads' input at an evaluated node, ``state_k = cell(state_(k-1), embedding
    of the token k behind the node)``; residual layers and the shared projection make logits of a
    state. K is how many steps are trained; drafts may go further.
    """

    def __init__(self, trunk: Trunk, options: HeadOptions):
        super().__init__(trunk, options, options.own_block is not False)
        self.cell = RecurrentCell(trunk.hidden_size)
        self.output = ResidualLayers(trunk.hidden_size, options.num_layers)
        if options.base_head:
            self.base = ResidualLayers(trunk.hidden_size, options.num_layers)

    @property
    def trained(self) -> bool:
        return self.output.trained

    def advance(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """One token further: states (..., D) and that token's embeddings (..., D) to (..., D)."""
        return self.cell(states, embedded)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """What the vocabulary projection reads of states that were advanced: (..., D)."""
        return self.output(states)

    def unroll(self, head_input, labels, embed, cross_keys_values=None):
        states, embedded = head_input, embed(labels)
        length = labels.size(1)
        for step in range(1, self.num_heads + 1):
            left = max(length - step, 0)
            read = embedded[:, step - 1 : step - 1 + left]
            states = self.advance(states[:, :left], read)
            yield self(states)


class RecurrentCell(torch.nn.Module):
    """``state + W_2 SiLU(W_1 norm(state) + U embedding + b)``; W_2 starts at zero.

    Args:
        hidden_size: D of states and embeddings.
    """

    def __init__(self, hidden_size: int):
        super().__init__()
        self.norm = torch.nn.LayerNorm(hidden_size)
        self.inner = torch.nn.Linear(2 * hidden_size, 2 * hidden_size)
        self.outer = torch.nn.Linear(2 * hidden_size, hidden_size)
        torch.nn.init.zeros_(self.outer.weight)
        torch.nn.init.zeros_(self.outer.bias)

    def forward(self, states: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """(..., D) and (..., D) to (..., D)."""
        read = torch.cat([self.norm(states), embedded], dim=-1)
        return states + self.outer(torch.nn.functional.silu(self.inner(read)))
