"""Acceptance rules: which drafted tokens stand.

Pure functions of E drafted tokens, each judged on its own; the search states the tree. All but
``threshold`` verify: they see the base head's logits, already constrained (forbidden tokens at
-inf), and no token is written that the base head did not allow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from espnet_medusa.search.options import EXACT, THRESHOLD, TOP_M, TYPICAL, SearchOptions


@dataclass(frozen=True)
class AcceptanceRule:
    """A rule with its options bound; exactly one of the two functions is set.

    Attributes:
        allowed: (logits (E, V), tokens (E,)) -> (E,) bool, of a rule that verifies.
        accepts_draft: (draft_log_probs (E,)) -> (E,) bool, of a rule that verifies nothing.
        best_only: Whether ``allowed`` is true of the best token alone, which a search knows anyway.
        prefix_only: Whether nothing is allowed behind a token that is not, be it the best one,
            which the search writes itself.
    """

    allowed: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    accepts_draft: Callable[[torch.Tensor], torch.Tensor] | None = None
    best_only: bool = False
    prefix_only: bool = False

    def __post_init__(self) -> None:
        assert (self.allowed is None) != (self.accepts_draft is None)

    @property
    def verifies(self) -> bool:
        """Whether a draft needs the base head's logits to be judged."""
        return self.allowed is not None


def exact(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Allow the base head's best token only: greedy text stays greedy text.

    Args:
        logits: (E, V) base logits that each draft has to agree with.
        tokens: (E,) drafts.

    Returns:
        (E,) bool.
    """
    return logits.argmax(dim=-1) == tokens


def typical(
    logits: torch.Tensor, tokens: torch.Tensor, epsilon: float, alpha: float
) -> torch.Tensor:
    """Allow a token while p0(token) > min(epsilon, alpha * exp(-H(p0))).

    Typical acceptance of Medusa (Cai et al., arXiv 2401.10774, section 3.1) as Whisper-Medusa
    uses it at temperature 1 (arXiv 2409.15869, eq. 4, which omits the minus sign that the code of
    both has). Not lossless: text can leave greedy text.

    Args:
        logits: (E, V).
        tokens: (E,).
        epsilon: Probability that is always enough, in (0, 1].
        alpha: Factor of the entropy-dependent threshold, above 0.

    Returns:
        (E,) bool.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    probs = log_probs.exp()
    # 1e-5 inside the logarithm as in Medusa's code: it bounds the entropy of impossible tokens.
    entropy = -(probs * torch.log(probs + 1e-5)).sum(dim=-1)
    least = torch.clamp(alpha * torch.exp(-entropy), max=epsilon)
    return probs.gather(-1, tokens[..., None]).squeeze(-1) > least


def top_m(logits: torch.Tensor, tokens: torch.Tensor, m: int) -> torch.Tensor:
    """Allow the M best base tokens (multi-token Speech-LLaMA, «verify top-M»).

    Of equal logits the lower token id ranks first, as in ``exact``, which this is for M = 1. A
    forbidden token (-inf) never stands, however few others are left. Not lossless.

    Args:
        logits: (E, V).
        tokens: (E,).
        m: Ranks that are good enough, 1 or more.

    Returns:
        (E,) bool.
    """
    tokens = tokens[..., None]
    own = logits.gather(-1, tokens)
    ids = torch.arange(logits.size(-1), device=logits.device)
    better = (logits > own) | ((logits == own) & (ids < tokens))
    return (better.sum(dim=-1) < m) & (own.squeeze(-1) > -torch.inf)


def threshold(draft_log_probs: torch.Tensor, tau: float) -> torch.Tensor:
    """Allow a draft to which the proposer itself gave a probability of tau or more.

    The only rule that NOTHING VERIFIES: the base head is not asked, so a proposer that is sure
    and wrong writes errors (multi-token Speech-LLaMA's threshold decoding).

    Args:
        draft_log_probs: (E,) the proposer's log-probability of each drafted token.
        tau: Least probability, in (0, 1].

    Returns:
        (E,) bool.
    """
    return draft_log_probs.exp() >= tau


def likelihood(logits: torch.Tensor, tokens: torch.Tensor, least: float) -> torch.Tensor:
    """Allow a token to which the base head gives a probability of ``least`` or more.

    Not lossless up to a half; above it only the best token can be so probable. A forbidden token
    (-inf) never stands, even where ``least`` is 0.

    Args:
        logits: (E, V).
        tokens: (E,).
        least: Probability that is enough; above 1 none is.

    Returns:
        (E,) bool.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    own = log_probs.gather(-1, tokens[..., None]).squeeze(-1)
    return (own.exp() >= least) & (own > -torch.inf)


def build_rule(options: SearchOptions) -> AcceptanceRule:
    """Return the rule of the options, which ``check_options`` has checked."""
    epsilon, alpha = options.typical_epsilon, options.typical_alpha
    rules = {
        EXACT: AcceptanceRule(exact, best_only=True),
        TYPICAL: AcceptanceRule(partial(typical, epsilon=epsilon, alpha=alpha)),
        TOP_M: AcceptanceRule(partial(top_m, m=options.top_m)),
        THRESHOLD: AcceptanceRule(accepts_draft=partial(threshold, tau=options.threshold)),
    }
    return rules[options.acceptance]
