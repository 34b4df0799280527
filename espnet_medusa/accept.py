"""Acceptance rules: how much of a drafted chain the base head lets stand.

Pure functions of the base head's logits and the drafted tokens. All rules verify: no token is
written that the base head did not allow.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_choice

AcceptanceRule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class AcceptanceOptions:
    """Decode options of the acceptance rules."""

    acceptance: str = "exact"  # exact, typical
    typical_epsilon: float = 0.09  # probability that is always enough
    typical_alpha: float = 0.3  # share of exp(-entropy) that is enough


def exact(logits: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    """Allow a drafted token where it is the base head's best: greedy text stays greedy text.

    Args:
        logits: (U, K, V) base logits, row j those that draft j has to agree with.
        drafts: (U, K) tokens.

    Returns:
        (U, K) bool, each draft on its own.
    """
    return logits.argmax(dim=-1) == drafts


def typical(
    logits: torch.Tensor, drafts: torch.Tensor, epsilon: float, alpha: float
) -> torch.Tensor:
    """Allow a drafted token while p0(token) > min(epsilon, alpha * exp(-H(p0))).

    Typical acceptance of Medusa (Cai et al., arXiv 2401.10774, section 3.1) as Whisper-Medusa
    uses it at temperature 1 (arXiv 2409.15869, eq. 4, which omits the minus sign that the code of
    both has). Not lossless: text can leave greedy text.

    Args:
        logits: (U, K, V).
        drafts: (U, K).
        epsilon: Probability that is always enough, in (0, 1].
        alpha: Factor of the entropy-dependent threshold, above 0.

    Returns:
        (U, K) bool.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    probs = log_probs.exp()
    # 1e-5 inside the logarithm as in Medusa's code: it bounds the entropy of impossible tokens.
    entropy = -(probs * torch.log(probs + 1e-5)).sum(dim=-1)
    threshold = torch.clamp(alpha * torch.exp(-entropy), max=epsilon)
    return probs.gather(-1, drafts[..., None]).squeeze(-1) > threshold


def accepted_lengths(allowed: torch.Tensor) -> torch.Tensor:
    """(U, K) bool to (U,): drafts before the first refused one."""
    return allowed.long().cumprod(dim=1).sum(dim=1)


def build_rule(options: AcceptanceOptions) -> AcceptanceRule:
    """The rule that the options name.

    Raises:
        InputError: Unknown rule or a value out of range; says what is allowed.
    """
    check_choice(options.acceptance, ["exact", "typical"], "acceptance")
    if options.acceptance == "exact":
        return exact
    epsilon, alpha = options.typical_epsilon, options.typical_alpha
    if not 0.0 < epsilon <= 1.0:
        raise InputError(f"typical_epsilon: {epsilon}; allowed: above 0, at most 1")
    if alpha <= 0.0:
        raise InputError(f"typical_alpha: {alpha}; allowed: above 0")
    return lambda logits, drafts: typical(logits, drafts, epsilon, alpha)
