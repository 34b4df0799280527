"""Beam search whose hypotheses are prolonged by drafts that nothing verifies.

Threshold decoding of multi-token Speech-LLaMA (arXiv 2409.08148) with a beam. Each call of the
decoder evaluates all running hypotheses. The base head's best continuations are pruned as in
ESPnet; then the heads prolong each survivor while they are sure. A hypothesis's score sums the
log-probabilities of the heads that produced its tokens (eq. 12). So the hypotheses of a beam differ
in length. The paper groups them by length, a forward call for each group; nodes of a token tree
have their own depths, so that here one call serves all groups of all utterances.

Every hypothesis is replaced by longer ones that differ behind it: none ever begins another, no
token sequence comes twice or is expanded twice.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch

from espnet_medusa.search.acceptance import threshold
from espnet_medusa.search.ahead.run_ahead import count_cost
from espnet_medusa.search.ahead.shape import DraftShape
from espnet_medusa.search.beam import BeamSearch, BeamState, BeamStrategy
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.scores import CANDIDATES, DECODER
from espnet_medusa.search.state import (
    Draft,
    EndedHypothesis,
    Hypothesis,
    best_continuations,
    prompt_draft,
    specialize,
)
from espnet_medusa.tree.proposer import DraftInput, Proposer
from espnet_medusa.tree.tree_decoder import TreeDecoder


@dataclass(frozen=True)
class DraftedHypothesis(Hypothesis):
    """A prefix with its score.

    Attributes:
        heads: Which head produced each token: 0 the base head, k the one for the token k behind
            the base head's.
    """

    heads: tuple[int, ...] = ()


@dataclass(frozen=True)
class EndedDraftedHypothesis(EndedHypothesis):
    """A finished hypothesis.

    Attributes:
        heads: As ``DraftedHypothesis``'s; none for the end symbol that the maximum length appends,
            whose score is not counted either.
    """

    heads: tuple[int, ...]


class ThresholdBeamSearch(BeamSearch):
    """Beam search with drafts that the heads alone are sure of; without heads plain beam search.

    ESPnet's end detection compares lengths, so there is none here. Scores are the decoder's and its
    heads': scorers that need every token of a hypothesis on the
    host, such as CTC or a language model, would cost a step for each draft.

    Args:
        decoder: Evaluates nodes.
        constraints: Which tokens may come where.
        proposer: Drafts; None with ``depth`` 0.
        threshold: Least probability of a draft, in (0, 1].
        beam_size: B, hypotheses that run.
        depth: Most tokens drafted behind the base head's; 0 drafts nothing.
        normalize_length: Rank finished hypotheses by score over length.
        nbest: Hypotheses asked for, at most B; None: B.
    """

    def __init__(
        self,
        decoder: TreeDecoder,
        constraints: Constraints,
        proposer: Proposer | None,
        threshold: float,
        beam_size: int,
        depth: int,
        normalize_length: bool = False,
        nbest: int | None = None,
    ):
        super().__init__(
            decoder,
            {},
            None,
            {DECODER: 1.0},
            beam_size,
            constraints,
            normalize_length=normalize_length,
            nbest=beam_size if nbest is None else min(nbest, beam_size),
        )
        strategy = ThresholdStrategy(self.strategy.scoring, beam_size)
        self.drafter = ThresholdDrafts(strategy, proposer, threshold, depth)

    def _begin(
        self, memory: torch.Tensor, prompt: torch.Tensor, limits: LengthLimits
    ) -> "ThresholdState":
        state = super()._begin(memory, prompt, limits)
        running = [DraftedHypothesis(state.root, 0.0, (0.0,))]
        return specialize(state, ThresholdState, running=running)


@dataclass
class ThresholdState(BeamState):
    """An utterance under threshold beam search."""

    @property
    def done(self) -> bool:
        return not self.running

    def go_on(self, beam: Sequence[DraftedHypothesis]) -> None:
        """Tell who has ended and who runs on."""
        self.running = []
        for hypothesis in beam:
            prefix, last = hypothesis.prefix, hypothesis.prefix.length == self.max_length
            if prefix.token != self.eos and not last:
                self.running.append(hypothesis)
            elif prefix.length > self.min_length:
                tokens = prefix.tokens() + [self.eos] * last
                length = self.prompt_length + len(tokens)
                self.ended.append(
                    EndedDraftedHypothesis(
                        tokens, hypothesis.score, hypothesis.parts, length, hypothesis.heads
                    )
                )
        self.running = self.hopeful()


class ThresholdStrategy(BeamStrategy):
    """The base head's part: the B best continuations of all running hypotheses together."""

    def advance(self, states: Sequence[ThresholdState]) -> None:
        for state in states:
            # All of them, or none: only a forced prefix is evaluated further on.
            while not state.done and state.running[0].prefix.evaluated:
                self._expand(state)

    def _expand(self, state: ThresholdState) -> None:
        heads = {hypothesis.prefix: hypothesis.heads for hypothesis in state.running}
        candidates = [prefix.memo[CANDIDATES] for prefix in heads]
        beam = best_continuations(state.running, candidates, self.beam_size, self.scoring.eos)
        for prefix in heads:
            state.scorers.settle(prefix)
        longer = [
            DraftedHypothesis(h.prefix, h.score, h.parts, (*heads[h.prefix.parent], 0))
            for h in beam
        ]
        state.go_on(longer)


class ThresholdDrafts:
    """The heads' part: each survivor goes on as far as they are sure.

    Args:
        strategy: The search.
        proposer: The heads; None drafts nothing.
        threshold: Least probability of a draft.
        depth: Most tokens drafted.
    """

    def __init__(
        self, strategy: ThresholdStrategy, proposer: Proposer | None, threshold: float, depth: int
    ):
        self.strategy, self.proposer, self.threshold = strategy, proposer, threshold
        self.shape = DraftShape(depth)
        if depth > 0:
            constraints = strategy.scoring.constraints
            self.constraints = constraints.restricted(proposer.vocabulary)

    @property
    def needs_head_input(self) -> bool:
        """Whether it drafts from what the decoder computes for heads."""
        return self.shape.depth > 0 and self.proposer.needs_head_input

    def begin(
        self,
        states: Sequence[ThresholdState],
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        draft_inputs: Sequence[DraftInput],
        cross_keys_values: Any,
    ) -> "ThresholdDrafts":
        """What drafts for these utterances; arguments as ``Proposer.begin``'s."""
        if self.shape.depth == 0:
            return self
        begun, roots = copy.copy(self), [state.root for state in states]
        begun.proposer = self.proposer.begin(
            roots, memory, memory_lengths, draft_inputs, cross_keys_values
        )
        return begun

    def draft_prompt(self, states: Sequence[ThresholdState]) -> None:
        """The prompt alone: what is written first is the base head's."""
        for state in states:
            state.draft = prompt_draft(state, self.strategy.scoring.constraints.forced_prefix)

    def draft(self, states: Sequence[ThresholdState]) -> None:
        """Prolong the running hypotheses; what they gained is what the next call evaluates."""
        chains = iter(self._chains(states))
        for state in states:
            beam = [
                self._prolonged(state, hypothesis, next(chains)) for hypothesis in state.running
            ]
            state.go_on(beam)
            state.draft = Draft(state.running)
            for hypothesis in state.running:
                ancestors = hypothesis.prefix.ancestors()
                path = [*takewhile(lambda prefix: not prefix.evaluated, ancestors)][::-1]
                state.draft.nodes |= dict.fromkeys(path, hypothesis.score)
                state.draft.silent |= {*path[:-1]}

    def _room(self, state: ThresholdState, hypothesis: Hypothesis) -> int:
        """How many drafts fit: the last place is the base head's, as in greedy search."""
        return min(self.shape.depth, state.max_length - hypothesis.prefix.length - 1)

    def _chains(self, states: Sequence[ThresholdState]) -> list[list[tuple[float, float, float]]]:
        """Draft behind all running hypotheses at once, on the device, and read it once.

        Returns:
            For each hypothesis and step the token, its log-probability and whether it stands.
        """
        pairs = [(state, hypothesis) for state in states for hypothesis in state.running]
        room = [self._room(*pair) for pair in pairs]
        if max(room, default=0) < 1:
            return [[]] * len(pairs)
        prefixes = [hypothesis.prefix for _, hypothesis in pairs]
        rows = {parent: row for row, parent in enumerate(dict.fromkeys(p.parent for p in prefixes))}
        self.proposer.keep(prefixes)
        device = prefixes[0].parent.head_input[0].device
        table = [[rows[p.parent] for p in prefixes], [p.token for p in prefixes],
                 [p.length for p in prefixes], room]  # fmt: skip
        origins, tokens, lengths, places = torch.tensor(table, device=device)
        draft_states, going, found = self.proposer.start([*rows]).select(origins), places > 0, []
        for step in range(max(room)):
            draft_states = self.proposer.advance(draft_states, tokens)
            scores = self.proposer.logits(draft_states).float().log_softmax(dim=-1)
            log_probs, columns = self.constraints.apply(scores, lengths + step).max(dim=-1)
            tokens = self.proposer.token_ids(columns)
            going = going & (step < places) & threshold(log_probs, self.threshold)
            found.append(torch.stack([tokens.double(), log_probs.double(), going.double()], dim=-1))
            going = going & (tokens != self.strategy.scoring.eos)
            # On a CPU it costs little to see that nobody goes on.
            if going.device.type == "cpu" and not bool(going.any()):
                break
        count_cost(self.proposer, states)
        return torch.stack(found, dim=1).tolist()

    def _prolonged(
        self,
        state: ThresholdState,
        hypothesis: DraftedHypothesis,
        chain: Sequence[tuple[float, float, float]],
    ) -> DraftedHypothesis:
        prefix, score = hypothesis.prefix, hypothesis.score
        for token, log_prob, stands in chain:
            if not stands:
                break
            prefix, score = prefix.child(int(token)), score + log_prob
        count = prefix.length - hypothesis.prefix.length
        ended = prefix.token == self.strategy.scoring.eos
        drafted = count if ended else max(self._room(state, hypothesis), 0)
        state.statistics.count_drafts(drafted, count)
        heads = (*hypothesis.heads, *range(1, count + 1))
        return DraftedHypothesis(prefix, score, (score,), heads)
