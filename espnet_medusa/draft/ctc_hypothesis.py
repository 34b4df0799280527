"""The greedy hypothesis of a CTC branch, and how sure the branch is of its frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

ALTERNATIVES = 3  # tokens that CTC names for one place
NONE = -1  # no token
HYPOTHESIS = "ctc_hypothesis"  # in the memo of a root whose utterance has been heard


class Retokenizer(NamedTuple):
    """From CTC's units to the decoder's.

    Attributes:
        to_text: Text of CTC's token ids.
        to_tokens: The decoder's token ids of a text.
    """

    to_text: Callable[[list[int]], str]
    to_tokens: Callable[[str], Sequence[int]]


class CTCHypothesis(NamedTuple):
    """What a CTC branch says of an utterance, in L tokens.

    Attributes:
        tokens: (L + 1, K) ids that may stand at each place, the hypothesis's own first, ``NONE``
            where there are fewer; behind all of them the end symbol.
        probabilities: (L + 1, K) their means over the frames of the place.
    """

    tokens: torch.Tensor
    probabilities: torch.Tensor

    def path(self) -> list[tuple[int, float]]:
        """The hypothesis's own tokens and their log-probabilities, the end symbol last."""
        log_probs = self.probabilities[:, 0].log().tolist()
        return [*zip(self.tokens[:, 0].tolist(), log_probs, strict=True)]


def frame_entropies(log_probs: torch.Tensor) -> torch.Tensor:
    """Entropy of the distribution of each frame, in nats.

    Args:
        log_probs: (S, V) of a CTC branch; -inf for what cannot be heard.

    Returns:
        (S,) between 0 and log V.
    """
    return torch.special.entr(log_probs.float().exp()).sum(dim=-1)


def greedy_hypothesis(
    log_probs: torch.Tensor, blank: int, eos: int, retokenizer: Retokenizer | None = None
) -> CTCHypothesis:
    """The best label of each frame, equal neighbours merged, blanks left out.

    Args:
        log_probs: (S, V) of the CTC branch.
        blank: Its blank.
        eos: The decoder's end symbol.
        retokenizer: Where its units are not the decoder's; without alternatives then.
    """
    labels, runs, sizes = log_probs.argmax(dim=-1).unique_consecutive(
        return_inverse=True, return_counts=True
    )
    means = log_probs.new_zeros(len(labels), log_probs.size(1), dtype=torch.float)
    means = means.index_add(0, runs, log_probs.float().exp()) / sizes[:, None]
    silent = torch.tensor([blank, eos] if retokenizer is None else [blank], device=means.device)
    probabilities, tokens = means.index_fill(1, silent, 0.0).topk(min(ALTERNATIVES, means.size(1)))
    spoken = ~torch.isin(labels, silent)
    probabilities, tokens = probabilities[spoken], tokens[spoken]
    if retokenizer is not None:
        ids = _retokenized(tokens[:, 0].tolist(), retokenizer)
        tokens = torch.tensor(ids, dtype=torch.long, device=means.device)[:, None]
        # Nobody knows any more which frames are whose.
        probabilities = probabilities[:, :1].mean(dim=0).expand(tokens.shape)
    return CTCHypothesis(
        _append(tokens, eos, NONE), _append(probabilities, float(means[-1].max()), 0.0)
    )


def _retokenized(labels: list[int], retokenizer: Retokenizer) -> list[int]:
    """The decoder's tokens of what was said, if anything was."""
    return [*retokenizer.to_tokens(retokenizer.to_text(labels))] if labels else []


def _append(rows: torch.Tensor, first: float, others: float) -> torch.Tensor:
    """(L, K) with one row more."""
    last = rows.new_full((1, rows.size(1)), others)
    last[0, 0] = first
    return torch.cat([rows, last])
