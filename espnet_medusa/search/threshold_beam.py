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
from espnet_medusa.search.beam import BeamSearch, BeamStrategy, BeamWalk
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.limits import LengthLimits
from espnet_medusa.search.scores import CANDIDATES, DECODER
from espnet_medusa.search.walk import (
    Draft,
    EndedHypothesis,
    Hypothesis,
    best_continuations,
    prompt_draft,
    specialize,
)
from espnet_medusa.tree.surrogate import DraftInput, Surrogate
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
        surrogate: Drafts; None with ``depth`` 0.
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
        surrogate: Surrogate | None,
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
        self.drafter = ThresholdDrafts(strategy, surrogate, threshold, depth)

    def _begin(
        self, memory: torch.Tensor, prompt: torch.Tensor, limits: LengthLimits
    ) -> "ThresholdWalk":
        walk = super()._begin(memory, prompt, limits)
        running = [DraftedHypothesis(walk.root, 0.0, (0.0,))]
        return specialize(walk, ThresholdWalk, running=running)


@dataclass
class ThresholdWalk(BeamWalk):
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

    def advance(self, walks: Sequence[ThresholdWalk]) -> None:
        for walk in walks:
            # All of them, or none: only a forced prefix is evaluated further on.
            while not walk.done and walk.running[0].prefix.evaluated:
                self._expand(walk)

    def _expand(self, walk: ThresholdWalk) -> None:
        heads = {hypothesis.prefix: hypothesis.heads for hypothesis in walk.running}
        candidates = [prefix.memo[CANDIDATES] for prefix in heads]
        beam = best_continuations(walk.running, candidates, self.beam_size, self.scoring.eos)
        for prefix in heads:
            walk.scorers.settle(prefix)
        longer = [
            DraftedHypothesis(h.prefix, h.score, h.parts, (*heads[h.prefix.parent], 0))
            for h in beam
        ]
        walk.go_on(longer)


class ThresholdDrafts:
    """The heads' part: each survivor goes on as far as they are sure.

    Args:
        strategy: The search.
        surrogate: The heads; None drafts nothing.
        threshold: Least probability of a draft.
        depth: Most tokens drafted.
    """

    def __init__(
        self, strategy: ThresholdStrategy, surrogate: Surrogate | None, threshold: float, depth: int
    ):
        self.strategy, self.surrogate, self.threshold = strategy, surrogate, threshold
        self.shape = DraftShape(depth)
        if depth > 0:
            constraints = strategy.scoring.constraints
            self.constraints = constraints.restricted(surrogate.vocabulary)

    @property
    def needs_head_input(self) -> bool:
        """Whether it drafts from what the decoder computes for heads."""
        return self.shape.depth > 0 and self.surrogate.needs_head_input

    def begin(
        self,
        walks: Sequence[ThresholdWalk],
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        draft_inputs: Sequence[DraftInput],
        heard: Any,
    ) -> "ThresholdDrafts":
        """What drafts for these utterances; arguments as ``Surrogate.begin``'s."""
        if self.shape.depth == 0:
            return self
        begun, roots = copy.copy(self), [walk.root for walk in walks]
        begun.surrogate = self.surrogate.begin(roots, memory, memory_lengths, draft_inputs, heard)
        return begun

    def draft_prompt(self, walks: Sequence[ThresholdWalk]) -> None:
        """The prompt alone: what is written first is the base head's."""
        for walk in walks:
            walk.draft = prompt_draft(walk, self.strategy.scoring.constraints.forced_prefix)

    def draft(self, walks: Sequence[ThresholdWalk]) -> None:
        """Prolong the running hypotheses; what they gained is what the next call evaluates."""
        chains = iter(self._chains(walks))
        for walk in walks:
            beam = [self._prolonged(walk, hypothesis, next(chains)) for hypothesis in walk.running]
            walk.go_on(beam)
            walk.draft = Draft(walk.running)
            for hypothesis in walk.running:
                ancestors = hypothesis.prefix.ancestors()
                path = [*takewhile(lambda prefix: not prefix.evaluated, ancestors)][::-1]
                walk.draft.nodes |= dict.fromkeys(path, hypothesis.score)
                walk.draft.silent |= {*path[:-1]}

    def _room(self, walk: ThresholdWalk, hypothesis: Hypothesis) -> int:
        """How many drafts fit: the last place is the base head's, as in greedy search."""
        return min(self.shape.depth, walk.max_length - hypothesis.prefix.length - 1)

    def _chains(self, walks: Sequence[ThresholdWalk]) -> list[list[tuple[float, float, float]]]:
        """Draft behind all running hypotheses at once, on the device, and read it once.

        Returns:
            For each hypothesis and step the token, its log-probability and whether it stands.
        """
        pairs = [(walk, hypothesis) for walk in walks for hypothesis in walk.running]
        room = [self._room(*pair) for pair in pairs]
        if max(room, default=0) < 1:
            return [[]] * len(pairs)
        prefixes = [hypothesis.prefix for _, hypothesis in pairs]
        rows = {parent: row for row, parent in enumerate(dict.fromkeys(p.parent for p in prefixes))}
        self.surrogate.keep(prefixes)
        device = prefixes[0].parent.head_input[0].device
        table = [[rows[p.parent] for p in prefixes], [p.token for p in prefixes],
                 [p.length for p in prefixes], room]  # fmt: skip
        origins, tokens, lengths, places = torch.tensor(table, device=device)
        states, going, found = self.surrogate.start([*rows]).select(origins), places > 0, []
        for step in range(max(room)):
            states = self.surrogate.advance(states, tokens)
            scores = self.surrogate.logits(states).float().log_softmax(dim=-1)
            log_probs, columns = self.constraints.apply(scores, lengths + step).max(dim=-1)
            tokens = self.surrogate.token_ids(columns)
            going = going & (step < places) & threshold(log_probs, self.threshold)
            found.append(torch.stack([tokens.double(), log_probs.double(), going.double()], dim=-1))
            going = going & (tokens != self.strategy.scoring.eos)
            # On a CPU it costs little to see that nobody goes on.
            if going.device.type == "cpu" and not bool(going.any()):
                break
        count_cost(self.surrogate, walks)
        return torch.stack(found, dim=1).tolist()

    def _prolonged(
        self,
        walk: ThresholdWalk,
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
        drafted = count if ended else max(self._room(walk, hypothesis), 0)
        walk.statistics.count_drafts(drafted, count)
        heads = (*hypothesis.heads, *range(1, count + 1))
        return DraftedHypothesis(prefix, score, (score,), heads)
