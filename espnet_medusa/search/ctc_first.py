"""CTC first: its hypothesis stands alone, one decoder call verifies it, or the search goes on.

The rule of IBM's «Self-Speculative Decoding for LLM-based ASR with CTC Encoder Drafts» (Saon et
al., arXiv 2603.11243), in three steps:

1. Where the entropies of all frames are below a threshold, CTC's greedy hypothesis is the text; the
   decoder is not asked.
2. Else one decoder call sees the whole hypothesis with the end symbol. Its tokens stand up to the
   first one to which the decoder gives less than a least probability.
3. Where one did not stand, greedy search goes on behind those that did.

We know the paper's abstract alone. So these are ours: entropies in nats, of the branch's whole
vocabulary; probabilities of the decoder at temperature 1, of what constraints leave; and the exact
rule behind the accepted tokens, where drafts save calls and change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from espnet_medusa.draft.ctc_hypothesis import HYPOTHESIS, frame_entropies
from espnet_medusa.search.acceptance import AcceptanceRule, likelihood
from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.ahead.shape import DraftShape
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.greedy import GreedySearch, GreedyState, GreedyStrategy
from espnet_medusa.search.loop import share_seconds
from espnet_medusa.search.options import SearchOptions
from espnet_medusa.search.state import Draft, prompt_draft

if TYPE_CHECKING:
    from espnet_medusa.draft.ctc import CTCProposer
    from espnet_medusa.tree.proposer import Proposer
    from espnet_medusa.tree.tree_decoder import TreeDecoder

CTC_TOKENS = "ctc_tokens"  # in the memo of a root: CTC's tokens as far as they may come


class CTCFirst:
    """Steps 1 and 2 of some options.

    Args:
        ctc: Hears utterances.
        constraints: Which tokens may come where; what they forbid does not stand.
        options: The thresholds.

    Attributes:
        rule: Of the call that verifies; None: no such call.
    """

    def __init__(self, ctc: CTCProposer, constraints: Constraints, options: SearchOptions):
        self.ctc, self.constraints = ctc, constraints
        self.entropy_threshold = options.ctc_entropy_threshold
        least, self.rule = options.ctc_likelihood_threshold, None
        if least is not None:
            self.rule = AcceptanceRule(partial(likelihood, least=least), prefix_only=True)

    def decide(self, states: Sequence[GreedyState], memories: Sequence[torch.Tensor]) -> None:
        """Write what stands by entropy, note for the others what is to be verified.

        The score of what stands is CTC's: of each token the mean over its frames.

        Args:
            states: U, at their roots.
            memories: U times (S, D) encoder output.
        """
        started = time.perf_counter()
        for state, memory in zip(states, memories, strict=True):
            hypothesis, log_probs = self.ctc.greedy_hypothesis(memory)
            path = hypothesis.path()
            # The end has no place behind the longest text.
            tokens = [token for token, _ in path[: state.max_length]]
            allowed = self.constraints.count_allowed(tokens, state.scorers.min_length)
            spelt = path[-1:] and path[-1][0] == state.eos
            whole = spelt and allowed == len(tokens) >= len(path) - 1
            if whole and self._is_sure(log_probs):
                for token, log_prob in path[: state.max_length]:
                    state.write(state.hypothesis.prefix.child(token), log_prob)
            state.root.memo |= {HYPOTHESIS: hypothesis, CTC_TOKENS: tokens[:allowed]}
        share_seconds(states, started, drafting=True)

    def _is_sure(self, log_probs: torch.Tensor) -> bool:
        """Whether all frames (S, V) are below the threshold."""
        if not self.entropy_threshold:  # no entropy is below 0
            return False
        return bool((frame_entropies(log_probs) < self.entropy_threshold).all())


class CTCFirstSearch(GreedySearch):
    """Greedy search behind what stands of CTC's hypothesis.

    Args:
        decoder, rule, constraints, proposer, shape: As ``GreedySearch``'s.
        ctc_first: Hears CTC before the decoder is asked.
    """

    def __init__(
        self,
        decoder: TreeDecoder,
        rule: AcceptanceRule,
        constraints: Constraints,
        proposer: Proposer | None,
        shape: DraftShape,
        ctc_first: CTCFirst,
    ):
        super().__init__(decoder, rule, constraints, proposer, shape)
        self.ctc_first = ctc_first
        if ctc_first.rule is not None:
            strategy = self.strategy
            parts = strategy.scoring, rule, strategy.best_tokens, strategy.width
            strategy = VerifyingStrategy(*parts, first_rule=ctc_first.rule)
            self.drafter = VerifyingRunAhead(strategy, proposer, shape)

    def _undecided(
        self, states: Sequence[GreedyState], ctc_inputs: Sequence[torch.Tensor]
    ) -> list[int]:
        self.ctc_first.decide(states, ctc_inputs)
        return [row for row, state in enumerate(states) if not state.done]


class VerifyingStrategy(GreedyStrategy):
    """Another rule for the first call, in which CTC's hypothesis is verified.

    Args:
        scoring, rule, best_tokens, draft_width: As ``GreedyStrategy``'s.
        first_rule: Of the first call.
    """

    def __init__(self, *parts: Any, first_rule: AcceptanceRule):
        super().__init__(*parts)
        self.first_rule = first_rule

    def rule_of(self, states: Sequence[GreedyState]) -> AcceptanceRule:
        # SearchStates begin together, and each call writes a token of each.
        return self.rule if states[0].steps else self.first_rule


class VerifyingRunAhead(RunAhead):
    """Drafts what was heard for the first call, for later ones as it is told."""

    def draft_prompt(self, states: Sequence[GreedyState]) -> None:
        constraints = self.strategy.scoring.constraints
        for state in states:
            state.draft = prompt_draft(state, constraints.forced_prefix)
            add_chain(state.draft, state, state.root.memo[CTC_TOKENS])


def add_chain(draft: Draft, state: GreedyState, tokens: Sequence[int]) -> None:
    """Draft these tokens behind the prompt, the end symbol or ``max_length`` the last."""
    prefix = state.root
    for token in tokens:
        prefix = prefix.child(token)
        last = token == state.eos or prefix.length == state.max_length
        (draft.ends if last else draft.nodes).setdefault(prefix, 0.0)
    draft.depth = len(tokens)
