"""The most probable next tokens of each prefix, among the tokens that are allowed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

CHUNK = 64  # columns per chunk in ``top_scores``


@dataclass(frozen=True, eq=False)
class ColumnGroups:
    """Limits of two groups of columns: those before the end symbol, and the last ones.

    Columns after the last group, if there are any, belong to the first group.
    """

    last: int  # first column of the last group
    # (R, 4) int64, for R prefixes: whether the first group is forbidden, whether only the last
    # group is allowed, first allowed column of the last group, and the column after its last one.
    limits: torch.Tensor
    after: int | None = None  # first column after the last group; None: there is none

    def apply(self, scores: torch.Tensor, eos: int) -> torch.Tensor:
        """Return a copy of scores (R, V), logits or log-probabilities, with -inf if forbidden.

        If the last group's tokens together are more probable than any other, only they are
        allowed. ``eos`` is the column of the end symbol.
        """
        columns = torch.arange(scores.size(1), device=scores.device)
        after = scores.size(1) if self.after is None else self.after
        last = (columns >= self.last) & (columns < after)
        without_first, only_last, least, end = self.limits[:, :, None].unbind(1)
        forbidden = last & ((columns < least) | (columns >= end))
        forbidden |= without_first.bool() & ((columns < eos) | (columns >= after))
        scores = scores.masked_fill(forbidden, -torch.inf)
        together = scores[:, self.last : after].float().logsumexp(dim=-1)
        likely = together > scores[:, : self.last].amax(dim=-1).float()
        if self.after is not None:
            likely &= together > scores[:, after:].amax(dim=-1).float()
        only_last = only_last.bool() | likely[:, None]
        return scores.masked_fill(only_last & ~last, -torch.inf)


@dataclass(frozen=True, eq=False)
class Restriction:
    """Forbidden next tokens of R prefixes, and replacements of their end symbol scores."""

    eos: int  # end symbol
    blocked: torch.Tensor | None = None  # (M, V) bool, forbidden tokens; None: none
    rows: torch.Tensor | None = None  # (R,) row of ``blocked`` for each prefix
    # (R,) scores of the end symbol, -inf where it is forbidden; None: unchanged.
    eos_scores: torch.Tensor | None = None
    # (C,) columns of ``blocked`` with True values; the others are skipped. None: all V.
    columns: torch.Tensor | None = None
    groups: ColumnGroups | None = None
    renormalize: bool = False  # whether log-probabilities are normalized over allowed tokens

    def select(self, prefixes: torch.Tensor) -> Restriction:
        """Return the restriction of some prefixes (R',), which may repeat."""
        rows, eos_scores = (
            None if a is None else a[prefixes] for a in (self.rows, self.eos_scores)
        )
        groups = self.groups and replace(self.groups, limits=self.groups.limits[prefixes])
        return replace(self, rows=rows, eos_scores=eos_scores, groups=groups)

    def apply(self, scores: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a copy of scores (R, V) with forbidden tokens at -inf; ``dtype``: of the copy."""
        scores = scores.to(dtype or scores.dtype, copy=True)
        if self.blocked is not None:
            columns = slice(None) if self.columns is None else self.columns
            blocked = self.blocked[:, columns][self.rows]
            scores[:, columns] = scores[:, columns].masked_fill(blocked, -torch.inf)
        if self.eos_scores is not None:
            scores[:, self.eos] = self.eos_scores
        return scores if self.groups is None else self.groups.apply(scores, self.eos)


class BestTokens(NamedTuple):
    """The best token of each of R rows of logits."""

    tokens: torch.Tensor  # (R,) best allowed tokens; among equal ones the first
    # (R,) float32 log-sum-exp over all V tokens, or over the allowed ones if the restriction
    # renormalizes (+inf if none is allowed).
    normalizers: torch.Tensor
    # (R,) float32, the token's logit (with ``renormalize``, as restricted) minus the normalizer.
    log_probs: torch.Tensor


class TopTokens(NamedTuple):
    """The best tokens of each of R rows of logits, best first."""

    # (R, count) float32, normalized over all V tokens, or over the allowed ones if the
    # restriction renormalizes; -inf for forbidden tokens.
    log_probs: torch.Tensor
    tokens: torch.Tensor  # (R, count)


def best_tokens(logits: torch.Tensor, restriction: Restriction | None = None) -> BestTokens:
    """Return the best token of each row of logits (R, V); None allows all tokens."""
    scores = logits if restriction is None else restriction.apply(logits, torch.float32)
    _, tokens = scores.max(dim=-1)  # several times faster than argmax
    renormalize = restriction is not None and restriction.renormalize
    best = (scores if renormalize else logits).gather(1, tokens[:, None])[:, 0].float()
    if renormalize:
        sums = scores.logsumexp(dim=-1)  # all may be -inf
        normalizers = sums.masked_fill(sums == -torch.inf, torch.inf)
    elif logits.device.type == "cpu":
        normalizers = logits.float().logsumexp(dim=-1)
    else:  # on a GPU, a log-probability takes fewer kernels
        log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
        normalizers = best - log_probs.gather(1, tokens[:, None])[:, 0]
    return BestTokens(tokens, normalizers, best - normalizers)


def top_tokens(
    logits: torch.Tensor, count: int, restriction: Restriction | None = None
) -> TopTokens:
    """Return the ``count`` best tokens of each row of logits (R, V); None allows all tokens."""
    if restriction is None:
        log_probs = logits.log_softmax(dim=-1, dtype=torch.float32)
    elif restriction.renormalize:
        scores = restriction.apply(logits, torch.float32)
        sums = scores.logsumexp(dim=-1, keepdim=True)
        log_probs = scores - sums.clamp(min=torch.finfo(sums.dtype).min)  # all may be -inf
    else:
        log_probs = restriction.apply(logits.log_softmax(dim=-1, dtype=torch.float32))
    return TopTokens(*top_scores(log_probs, count))


def top_scores(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``count`` best of scores (R, V) and their columns, best first.

    Only the ``count`` chunks with the largest maxima are searched: they contain all results. Over
    Whisper's vocabulary this is several times faster than ``topk``.
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
