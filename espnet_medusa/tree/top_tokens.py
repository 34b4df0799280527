"""The most probable tokens behind each prefix among those that may come."""

from typing import NamedTuple

import torch

from espnet_medusa.tree.best_token import Restriction

CHUNK = 64  # columns whose maximum ``top_scores`` looks at first


class TopTokens(NamedTuple):
    """Of R rows of logits, best first.

    Attributes:
        log_probs: (R, count) float32, among all tokens; -inf where no more may come.
        tokens: (R, count).
    """

    log_probs: torch.Tensor
    tokens: torch.Tensor


def top_tokens(
    logits: torch.Tensor, count: int, restriction: Restriction | None = None
) -> TopTokens:
    """The ``count`` best of logits (R, V); without a restriction all tokens may come.

    Args:
        logits: To be normalized.
        count: At most V.
        restriction: Of log-probabilities.
    """
    log_probs = logits.float().log_softmax(dim=-1)
    if restriction is not None:
        log_probs = restriction.apply(log_probs)
    return TopTokens(*top_scores(log_probs, count))


def top_scores(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``count`` best of (R, V) and their columns, best first.

    The best of V numbers lie in the ``count`` chunks with the largest maxima, and maxima are
    cheap: several times faster than ``topk`` over Whisper's vocabulary.
    """
    rows, size = scores.shape
    if size <= CHUNK * CHUNK or count == 1:
        return scores.max(-1, keepdim=True) if count == 1 else scores.topk(count, dim=-1)
    whole = size // CHUNK * CHUNK
    chunks = scores[:, :whole].unflatten(-1, (-1, CHUNK))
    best = chunks.amax(-1).topk(min(count, chunks.size(1)), dim=-1).indices
    inside = chunks.gather(1, best[:, :, None].expand(-1, -1, CHUNK)).flatten(1)
    offsets = torch.arange(CHUNK, device=scores.device)
    columns = (best[:, :, None] * CHUNK + offsets).flatten(1)
    rest = torch.arange(whole, size, device=scores.device).expand(rows, -1)
    values, places = torch.cat([inside, scores[:, whole:]], dim=1).topk(count, dim=-1)
    return values, torch.cat([columns, rest], dim=1).gather(1, places)
