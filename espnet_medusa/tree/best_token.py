"""The best token behind each prefix among those that may come."""

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True, eq=False)
class Restriction:
    """Which tokens may follow R prefixes, and what the end symbol is worth behind them.

    Attributes:
        eos: End symbol.
        blocked: (M, V) bool, tokens that must not come; None: all may.
        rows: (R,) which row of ``blocked`` holds behind each prefix.
        eos_scores: (R,) of the end symbol, -inf where it must not come; None: as scores have them.
        columns: (C,) tokens that a row of ``blocked`` bars, as to mask all costs more than to find
            the best of them; None: not known.
    """

    eos: int
    blocked: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    eos_scores: torch.Tensor | None = None
    columns: torch.Tensor | None = None

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        """A copy of scores (R, V) with what must not come at -inf."""
        scores = scores.clone()
        if self.blocked is not None:
            columns = slice(None) if self.columns is None else self.columns
            barred = self.blocked[:, columns][self.rows]
            scores[:, columns] = scores[:, columns].masked_fill(barred, -torch.inf)
        if self.eos_scores is not None:
            scores[:, self.eos] = self.eos_scores
        return scores


class BestTokens(NamedTuple):
    """What R rows of logits say at once.

    Attributes:
        tokens: (R,) the best that may come; of equal ones the first.
        normalizers: (R,) float32, a logit less this is the log-probability, of whatever may come.
    """

    tokens: torch.Tensor
    normalizers: torch.Tensor


def best_tokens(logits: torch.Tensor, restriction: Restriction | None = None) -> BestTokens:
    """Of logits (R, V); without a restriction all tokens may come."""
    scores = logits if restriction is None else restriction.apply(logits.float())
    _, tokens = scores.max(dim=-1)  # several times faster than argmax
    return BestTokens(tokens, logits.float().logsumexp(dim=-1))
