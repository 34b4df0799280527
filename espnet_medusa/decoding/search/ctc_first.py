"""CTC first: accept CTC's hypothesis, or verify it in one decoder call, or continue after it.

The rule of IBM's "Self-Speculative Decoding for LLM-based ASR with CTC Encoder Drafts" (Saon et
al., arXiv 2603.11243), in three steps:

1. If the entropies of all frames are below a threshold, CTC's greedy hypothesis is the text,
   without a decoder call.
2. Otherwise one decoder call evaluates the whole hypothesis with the end symbol. Its tokens are
   accepted up to the first one with a decoder probability below a minimum.
3. If a token was rejected, greedy search continues after the accepted ones.

Only the paper's abstract was available. These are our choices: entropies in nats over the branch's
whole vocabulary; decoder probabilities at temperature 1 among the allowed tokens; the exact rule
after the accepted tokens.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from espnet_medusa.decoding.draft.ctc import CTCProposer
from espnet_medusa.decoding.draft.ctc_hypothesis import frame_entropies
from espnet_medusa.decoding.search.acceptance import AcceptanceRule, likelihood
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.drafting.step_planner import StepPlanner
from espnet_medusa.decoding.search.greedy import GreedyState, GreedyStrategy
from espnet_medusa.decoding.search.search import share_seconds
from espnet_medusa.decoding.search.search_options import SearchOptions
from espnet_medusa.decoding.search.state import prompt_draft
from espnet_medusa.decoding.tree.best_tokens import BestTokens, Restriction
from espnet_medusa.decoding.tree.proposer import DraftInput


class CTCFirstStrategy(GreedyStrategy):
    """Greedy search after the accepted part of CTC's hypothesis."""

    def __init__(
        self,
        rule: AcceptanceRule,
        constraints: Constraints,
        best_tokens: Callable[[torch.Tensor, Restriction | None], BestTokens],
        ctc: CTCProposer,
        options: SearchOptions,
    ):
        super().__init__(rule, constraints, best_tokens)
        self.ctc, self.entropy_threshold = ctc, options.ctc_entropy_threshold
        least = options.ctc_likelihood_threshold
        self.first_rule = None  # verifies CTC's tokens in the first call, if it is not None
        if least is not None:
            self.first_rule = AcceptanceRule(partial(likelihood, least=least))

    def decide_early(self, states: Sequence[GreedyState], draft_inputs) -> list[DraftInput]:
        """End utterances whose CTC frames all have low entropy.

        For others, keep the CTC tokens for the first call if there is a likelihood threshold.

        The score is a sum of CTC's log-probabilities. A label's probability is the mean over its
        frames; the end symbol gets that of the last run of equal labels, even of blanks.
        """
        started, known = time.perf_counter(), []
        for state, draft_input in zip(states, draft_inputs, strict=True):
            hypothesis, log_probs = self.ctc.greedy_hypothesis(draft_input.ctc_input)
            path = hypothesis.path()
            # At the maximum length there is no place for the end symbol.
            tokens = [token for token, _ in path[: state.max_length]]
            allowed = self.scoring.constraints.count_allowed(tokens, state.scorers.min_length)
            complete = path[-1:] and path[-1][0] == state.eos
            whole = complete and allowed == len(tokens) >= len(path) - 1
            threshold = self.entropy_threshold  # None or 0: always call the decoder
            if whole and threshold and bool((frame_entropies(log_probs) < threshold).all()):
                for token, log_prob in path[: state.max_length]:
                    state.write(state.hypothesis.prefix.child(token), log_prob)
            state.ctc_tokens = tokens[:allowed]
            known.append(replace(draft_input, ctc_hypothesis=hypothesis))
        share_seconds(states, started, drafting=True)
        return known

    def rule_of(self, states: Sequence[GreedyState]) -> AcceptanceRule:
        # All states of a batch start together, and each call adds a token to each of them.
        first = self.first_rule is not None and not states[0].steps
        return self.first_rule if first else self.rule


class CTCFirstPlanner(StepPlanner):
    """Drafts CTC's whole hypothesis for the first call if that call verifies it."""

    def draft_prompt(self, states: Sequence[GreedyState]) -> None:
        if self.strategy.first_rule is None:
            super().draft_prompt(states)
            return
        for state in states:
            prefix = state.root
            draft = prompt_draft(state, self.strategy.scoring.constraints.forced_prefix)
            for token in state.ctc_tokens:
                prefix = prefix.child(token)
                last = token == state.eos or prefix.length == state.max_length
                (draft.ends if last else draft.nodes).setdefault(prefix, 0.0)
            draft.depth = len(state.ctc_tokens)
            state.draft = draft
