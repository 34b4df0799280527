"""The best tokens of logits in kernels of our own (CPU, inference).

Logits are float32. Nothing is copied to leave tokens out.
"""

import torch

from espnet_medusa.runtime.native.library import RestrictionArguments, kernels, pointer
from espnet_medusa.tree.best_token import BestTokens, Restriction
from espnet_medusa.tree.top_tokens import TopTokens


def native_best_tokens(logits: torch.Tensor, restriction: Restriction | None = None) -> BestTokens:
    """As ``best_tokens``."""
    logits, arguments = logits.contiguous(), _arguments(restriction)
    tokens, normalizers = torch.empty(len(logits), dtype=torch.long), logits.new_empty(len(logits))
    kernels().best_tokens(
        *(logits.data_ptr(), *logits.shape, arguments, tokens.data_ptr(), normalizers.data_ptr()),
        torch.get_num_threads(),
    )
    return BestTokens(tokens, normalizers)


def native_top_tokens(
    logits: torch.Tensor, count: int, restriction: Restriction | None = None
) -> TopTokens:
    """As ``top_tokens``, of a restriction without scores of the end symbol."""
    logits, arguments = logits.contiguous(), _arguments(restriction)
    tokens = torch.empty(len(logits), count, dtype=torch.long)
    log_probs = torch.empty(len(logits), count)
    kernels().top_tokens(
        *(logits.data_ptr(), *logits.shape, arguments, count),
        *(tokens.data_ptr(), log_probs.data_ptr(), torch.get_num_threads()),
    )
    return TopTokens(log_probs, tokens)


def _arguments(restriction: Restriction | None) -> RestrictionArguments:
    """Those that hold as long as they are there themselves."""
    if restriction is None:
        return RestrictionArguments(None, None, -1, None)
    given = restriction.blocked, restriction.rows, restriction.eos_scores
    blocked, rows, eos_scores = (one if one is None else one.contiguous() for one in given)
    arguments = RestrictionArguments(
        *map(pointer, (blocked, rows)), restriction.eos, pointer(eos_scores)
    )
    arguments.kept = blocked, rows, eos_scores
    return arguments
