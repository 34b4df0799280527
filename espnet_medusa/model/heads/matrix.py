"""Heads of one matrix each, by multi-token Speech-LLaMA (Raj, Keren et al., arXiv 2409.08148).

The paper's K counts the base head: K = num_heads + 1. Projection heads add (K - 1) D V parameters,
latent heads K D^2.
"""

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.model.heads.base import HeadOptions, Heads, Trunk


class MatrixHeads(Heads):
    """No layers of their own, so none of the options about them.

    Args:
        trunk: What they stand on.
        options: K.

    Raises:
        InputError: An option that only other heads have.
    """

    def __init__(self, trunk: Trunk, options: HeadOptions):
        allowed = HeadOptions(num_heads=options.num_heads)
        if options != allowed:
            raise InputError(
                f"decoder_conf.heads_conf: {options}; allowed with heads: projection and latent: "
                "num_heads alone"
            )
        super().__init__(trunk, options)


class ProjectionHeads(MatrixHeads):
    """A vocabulary projection of its own for each head; they start at zero."""

    def __init__(self, trunk: Trunk, options: HeadOptions):
        super().__init__(trunk, options)
        shape = options.num_heads, trunk.vocab_size, trunk.hidden_size
        self.weight = torch.nn.Parameter(torch.zeros(shape))

    def projections(self, shared: torch.Tensor) -> list[torch.Tensor]:
        return [*self.weight]

    @property
    def trained(self) -> bool:
        return bool(self.weight.any())

    def unroll(self, head_input, labels, embed, cross_keys_values=None):
        for step in range(1, self.num_heads + 1):
            yield head_input[:, : max(labels.size(1) - step, 0)]


class LatentHeads(MatrixHeads):
    """A D x D matrix for each head, the base head included, before the shared projection.

    They start as identities: what a trained base predicts does not change.
    """

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

    def unroll(self, head_input, labels, embed, cross_keys_values=None):
        for step, head in enumerate(self.heads, start=1):
            yield head(head_input[:, : max(labels.size(1) - step, 0)])
