"""Parallel heads as drafters: step j behind an evaluated node is head j's."""

from dataclasses import dataclass, replace

import torch

from espnet_medusa.decoder.tree_decoder import TreeDecoder


@dataclass(frozen=True)
class HeadsState:
    """Drafting state of parallel heads.

    Attributes:
        logits: (K, ..., V) of all heads at the evaluated node.
        step: Tokens drafted so far; the next one is head ``step``'s.
    """

    logits: torch.Tensor
    step: int = 0


class HeadsSurrogate:
    """Stands in for the decoder behind the token that follows an evaluated node.

    Args:
        decoder: Its heads draft.
    """

    def __init__(self, decoder: TreeDecoder):
        self.decoder = decoder

    @property
    def max_steps(self) -> int:
        """K."""
        return self.decoder.num_heads

    def start(self, head_input: torch.Tensor) -> HeadsState:
        """Begin at evaluated nodes.

        Args:
            head_input: (..., D) of ``NodeOutputs``.
        """
        return HeadsState(self.decoder.head_logits(head_input))

    def log_probs(self, state: HeadsState) -> torch.Tensor:
        """(..., V) for the token that is drafted next."""
        return torch.log_softmax(state.logits[state.step], dim=-1)

    def advance(self, state: HeadsState, tokens: torch.Tensor) -> HeadsState:
        """One token further; parallel heads do not look at which."""
        del tokens
        return replace(state, step=state.step + 1)


def draft_chain(surrogate: HeadsSurrogate, head_input: torch.Tensor, length: int) -> torch.Tensor:
    """The surrogate's best token, ``length`` times in a row: Medusa's chain.

    Args:
        surrogate: Drafts.
        head_input: (U, D) at the node behind which the next token is known.
        length: Tokens to draft, at most ``surrogate.max_steps``.

    Returns:
        (U, length) tokens that follow the next token.
    """
    drafts = []
    state = surrogate.start(head_input) if length > 0 else None
    for _ in range(length):
        token = surrogate.log_probs(state).argmax(dim=-1)
        drafts.append(token)
        state = surrogate.advance(state, token)
    if not drafts:
        return torch.zeros(head_input.size(0), 0, dtype=torch.long, device=head_input.device)
    return torch.stack(drafts, dim=1)
