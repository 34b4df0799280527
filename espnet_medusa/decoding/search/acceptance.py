"""Acceptance rules for drafted tokens.

A rule is a pure function that accepts or rejects each of E drafted tokens independently, (E,) bool.
``threshold`` uses the drafter's probabilities. All other rules verify tokens (E,) by the base
head's logits (E, V), where forbidden tokens are at -inf.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from espnet_medusa.decoding.search.search_options import (
    EXACT,
    THRESHOLD,
    TOP_M,
    TYPICAL,
    SearchOptions,
)


@dataclass(frozen=True)
class AcceptanceRule:
    """A rule with its options; exactly one of the two functions is set."""

    # (logits (E, V), tokens (E,)) -> (E,) bool, for a rule that verifies.
    allowed: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    # (draft_log_probs (E,)) -> (E,) bool, for a rule that does not verify.
    accepts_draft: Callable[[torch.Tensor], torch.Tensor] | None = None
    best_only: bool = False  # whether ``allowed`` is true for the best token only
    accepts_best: bool = False  # whether ``allowed`` is always true for the best token

    @property
    def verifies(self) -> bool:
        """Whether the rule needs the base head's logits."""
        return self.allowed is not None


def exact(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Accept only the base head's best token, which preserves the greedy text.

    Greedy search does not call it: ``GreedyStrategy.advance`` follows the best tokens.
    """
    return logits.argmax(dim=-1) == tokens


def typical(
    logits: torch.Tensor, tokens: torch.Tensor, epsilon: float, alpha: float
) -> torch.Tensor:
    """Accept a token if p0(token) > min(epsilon, alpha * exp(-H(p0))).

    Medusa's typical acceptance (Cai et al., arXiv 2401.10774, section 3.1) as in Whisper-Medusa at
    temperature 1 (arXiv 2409.15869, eq. 4). The equation lacks the minus sign of both
    implementations. Not lossless: the text can differ from greedy text.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    probs = log_probs.exp()
    # 1e-5 inside the logarithm, as in Medusa's code, avoids the logarithm of 0.
    entropy = -(probs * torch.log(probs + 1e-5)).sum(dim=-1)
    least = torch.clamp(alpha * torch.exp(-entropy), max=epsilon)
    return probs.gather(-1, tokens[..., None]).squeeze(-1) > least


def top_m(logits: torch.Tensor, tokens: torch.Tensor, m: int) -> torch.Tensor:
    """Accept the base head's M >= 1 best tokens (multi-token Speech-LLaMA, "verify top-M").

    Among equal logits the lower token id ranks first, so that M = 1 equals ``exact``. Forbidden
    tokens (-inf) are never accepted. Not lossless.
    """
    tokens = tokens[..., None]
    chosen = logits.gather(-1, tokens)
    ids = torch.arange(logits.size(-1), device=logits.device)
    better = (logits > chosen) | ((logits == chosen) & (ids < tokens))
    return (better.sum(dim=-1) < m) & (chosen.squeeze(-1) > -torch.inf)


def threshold(draft_log_probs: torch.Tensor, tau: float) -> torch.Tensor:
    """Accept drafts whose probability by the drafter is at least tau, in (0, 1].

    The only rule WITHOUT VERIFICATION by the base head: confident errors of the drafter get into
    the text (threshold decoding of multi-token Speech-LLaMA).
    """
    return draft_log_probs.exp() >= tau


def likelihood(logits: torch.Tensor, tokens: torch.Tensor, least: float) -> torch.Tensor:
    """Accept a token if the base head's probability is ``least`` or more.

    If ``least`` is above 0.5, only the best token can be accepted; otherwise the rule is not
    lossless. Forbidden tokens (-inf) are never accepted, even if ``least`` is 0.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    chosen = log_probs.gather(-1, tokens[..., None]).squeeze(-1)
    return (chosen.exp() >= least) & (chosen > -torch.inf)


def build_rule(options: SearchOptions) -> AcceptanceRule:
    """Return the rule of the options, which ``check_options`` has checked."""
    epsilon, alpha = options.typical_epsilon, options.typical_alpha
    # The best token's probability is at least exp(-H). With the 1e-5 inside the logarithm, exp(-H)
    # is too large by a factor of at most exp(1e-5 V), below 2 for V up to 69,000. With a larger
    # vocabulary, the search writes the best token all the same.
    best = alpha <= 0.5
    rules = {
        EXACT: AcceptanceRule(exact, best_only=True),
        TYPICAL: AcceptanceRule(partial(typical, epsilon=epsilon, alpha=alpha), accepts_best=best),
        TOP_M: AcceptanceRule(partial(top_m, m=options.top_m), accepts_best=True),
        THRESHOLD: AcceptanceRule(accepts_draft=partial(threshold, tau=options.threshold)),
    }
    return rules[options.acceptance]
