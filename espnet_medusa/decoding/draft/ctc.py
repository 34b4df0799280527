"""A proposer that drafts CTC's greedy hypothesis, also after mismatches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from espnet_medusa.decoding.draft.alignment import DraftHypothesis, Hypotheses
from espnet_medusa.decoding.draft.ctc_hypothesis import (
    Retokenization,
    greedy_hypothesis,
    retokenized_hypothesis,
)
from espnet_medusa.decoding.draft.text import HypothesisProposer
from espnet_medusa.decoding.tree.proposer import DraftContext


@dataclass(eq=False)
class CTCProposer(HypothesisProposer):
    """A proposer that drafts the greedy hypothesis of a CTC branch."""

    # Log-probabilities of the branch, encoder output (1, S, D) to (1, S', V).
    ctc: Callable[[torch.Tensor], torch.Tensor]
    vocab_size: int  # V
    eos: int
    blank: int = 0
    vocabulary: torch.Tensor | None = None
    # For a branch with its own units and blank 0; None: units are tokens.
    retokenization: Retokenization | None = None

    def begin(self, context: DraftContext) -> HypothesisProposer:
        hypotheses = [
            utterance.ctc_hypothesis or self.greedy_hypothesis(utterance.ctc_input)[0]
            for utterance in context.draft_inputs
        ]
        write = None if self.retokenization is None else self.retokenization.write
        of_batch = Hypotheses.of(hypotheses, self.vocab_size, self.vocabulary, write)
        return self.begin_with(of_batch, context.roots)

    def greedy_hypothesis(self, encoder_out: torch.Tensor) -> tuple[DraftHypothesis, torch.Tensor]:
        """Return the hypothesis of an utterance (S, D), and log-probabilities (S', V)."""
        log_probs = self.ctc(encoder_out[None])[0]
        if self.retokenization is None:
            return greedy_hypothesis(log_probs, self.blank, self.eos), log_probs
        return retokenized_hypothesis(log_probs, self.eos, self.retokenization), log_probs

    def chain(self, states, depth, min_log_prob, tokens=None, restrict=None) -> torch.Tensor | None:
        # With a smaller draft vocabulary, the best drafts may be different tokens.
        if self.vocabulary is not None or min_log_prob > -math.inf or restrict is not None:
            return None
        return self.hypotheses.chain(self.append(states, tokens), depth, self.eos)
