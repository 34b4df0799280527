"""Heads that predict their tokens independently of each other, from the same hidden state.

Linear and block heads: Medusa-Linear and Medusa-Block of Whisper-Medusa (Segal-Feldman et al.,
arXiv 2409.15869, section 3), with the parameters of aiola-lab/whisper-medusa. Projection and latent
heads: multi-token Speech-LLaMA (Raj, Keren et al., arXiv 2409.08148). That paper's K counts the
base head: K = num_heads + 1. Projection heads add (K - 1) D V parameters, latent heads K D^2.
"""

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.networks.heads.base import HeadOptions, Heads, Trunk


class ParallelHeads(Heads):
    """Heads that depend on the hidden state only; ``heads`` has a network for each."""

    def unroll(self, head_input, labels, embed, cross_keys_values=None):
        for step, head in enumerate(self.heads, start=1):
            yield head(head_input[:, : max(labels.size(1) - step, 0)])


class ResidualLayers(torch.nn.Module):
    """``x + SiLU(W x + b)``, ``num_layers`` times; W starts at zero."""

    def __init__(self, hidden_size: int, num_layers: int):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(hidden_size, hidden_size) for _ in range(num_layers)
        )
        for layer in self.layers:
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (..., D) to (..., D)."""
        for layer in self.layers:
            hidden = hidden + torch.nn.functional.silu(layer(hidden))
        return hidden

    @property
    def trained(self) -> bool:
        """Whether any weight is not zero."""
        return any(bool(torch.any(parameter != 0)) for parameter in self.parameters())


class LinearHeads(ParallelHeads):
    """Medusa-Linear: residual layers per head on the decoder's last hidden state."""

    has_block = False

    def __init__(self, trunk: Trunk, options: HeadOptions):
        if options.own_block not in (None, self.has_block):
            raise InputError(
                f"decoder_conf.heads_conf.own_block: {options.own_block}; allowed with heads: "
                "recurrent; remove it, or use heads: linear (no block) or block"
            )
        super().__init__(trunk, options, self.has_block)
        sizes = trunk.hidden_size, options.num_layers
        self.heads = torch.nn.ModuleList(ResidualLayers(*sizes) for _ in range(options.num_heads))
        self.base = ResidualLayers(*sizes) if options.base_head else None

    @property
    def trained(self) -> bool:
        return any(head.trained for head in self.heads)


class BlockHeads(LinearHeads):
    """Medusa-Block: a decoder layer below the heads that starts as a copy of the last one."""

    has_block = True


class ProjectionHeads(ParallelHeads):
    """One vocabulary projection per head, which starts at zero."""

    allowed = ("num_heads",)

    def __init__(self, trunk: Trunk, options: HeadOptions):
        super().__init__(trunk, options)
        shape = options.num_heads, trunk.vocab_size, trunk.hidden_size
        self.weight = torch.nn.Parameter(torch.zeros(shape))
        self.heads = torch.nn.ModuleList(torch.nn.Identity() for _ in range(options.num_heads))

    def projections(self, shared: torch.Tensor) -> list[torch.Tensor]:
        return [*self.weight]

    @property
    def trained(self) -> bool:
        return bool(self.weight.any())


class LatentHeads(ParallelHeads):
    """One D x D matrix per head, including the base head, before the shared projection.

    The matrices start as identities, so that predictions of a trained base head do not change.
    """

    allowed = ("num_heads",)

    def __init__(self, trunk: Trunk, options: HeadOptions):
        super().__init__(trunk, options)
        size = trunk.hidden_size
        self.base = torch.nn.Linear(size, size, bias=False)
        self.heads = torch.nn.ModuleList(
            torch.nn.Linear(size, size, bias=False) for _ in range(options.num_heads)
        )
        for module in (self.base, *self.heads):
            torch.nn.init.eye_(module.weight)

    @property
    def trained(self) -> bool:
        identity = torch.eye(len(self.base.weight), device=self.base.weight.device)
        return any(not torch.equal(head.weight, identity) for head in self.heads)
