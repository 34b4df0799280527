"""The best tokens of logits in a kernel of our own (CPU, inference)."""

import torch

from espnet_medusa.runtime.native.library import RestrictionArguments, kernels, pointer
from espnet_medusa.tree.best_token import BestTokens, Restriction


def native_best_tokens(logits: torch.Tensor, restriction: Restriction | None = None) -> BestTokens:
    """As ``best_tokens``, of logits (R, V) in float32: nothing is copied to leave tokens out."""
    logits = logits.contiguous()
    blocked = rows = eos_scores = None
    if restriction is not None and restriction.blocked is not None:
        blocked, rows = restriction.blocked.contiguous(), restriction.rows.contiguous()
    if restriction is not None and restriction.eos_scores is not None:
        eos_scores = restriction.eos_scores.contiguous()
    eos = -1 if restriction is None else restriction.eos
    arguments = RestrictionArguments(*map(pointer, (blocked, rows)), eos, pointer(eos_scores))
    tokens, normalizers = torch.empty(len(logits), dtype=torch.long), logits.new_empty(len(logits))
    kernels().best_tokens(
        *(logits.data_ptr(), *logits.shape, arguments, tokens.data_ptr(), normalizers.data_ptr()),
        torch.get_num_threads(),
    )
    return BestTokens(tokens, normalizers)
