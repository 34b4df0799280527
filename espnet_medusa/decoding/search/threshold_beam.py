"""Beam search whose hypotheses are extended by unverified drafts.

Threshold decoding of multi-token Speech-LLaMA (arXiv 2409.08148) with a beam. Each decoder call
evaluates all running hypotheses. The base head's best continuations are pruned as in ESPnet. Then
the drafter appends tokens as long as their probability reaches the threshold. A hypothesis's score
is the sum of the log-probabilities of the heads that produced its tokens (eq. 12). The hypotheses
of a beam differ in length. The paper needs a forward call per length; with a token tree one call
evaluates all lengths of all utterances.

The continuations of a hypothesis replace it. So no hypothesis is a prefix of another one, and no
token sequence is evaluated twice.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import torch

from espnet_medusa.decoding.search.acceptance import threshold as exceeds
from espnet_medusa.decoding.search.beam import BeamState, BeamStrategy
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.drafting.step_planner import StepPlanner, count_cost
from espnet_medusa.decoding.search.scores import DECODER_ALONE
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.state import (
    Draft,
    Hypothesis,
    best_continuations,
    check_numbers,
    prompt_draft,
)
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import Proposer
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder


def threshold_beam_search(
    decoder: TreeDecoder,
    constraints: Constraints,
    proposer: Proposer | None,
    threshold: float,
    beam_size: int,
    depth: int,
    normalize_length: bool = False,
    nbest: int | None = None,
) -> Search:
    """Return a beam search with unverified drafts.

    ESPnet's end detection is not used, because it compares hypotheses of one length. Other scorers
    are not allowed: every drafted token would be copied to the host for them.

    Args:
        decoder, constraints, proposer, normalize_length: As in ``beam_search``.
        threshold: Minimum probability of a draft, in (0, 1].
        depth: Maximum number of tokens drafted after the base head's; 0: without drafts.
        nbest: Number of requested hypotheses, at most ``beam_size``; None: ``beam_size``.
    """
    nbest = beam_size if nbest is None else min(nbest, beam_size)
    parts = DECODER_ALONE, beam_size, constraints, decoder.top_tokens, normalize_length, nbest
    strategy = ThresholdStrategy(*parts)
    return Search(decoder, ThresholdPlanner(strategy, proposer, threshold, depth))


class ThresholdStrategy(BeamStrategy):
    """Keeps the base head's ``beam_size`` best continuations of all running hypotheses."""

    def begin(self, encoder_out, prompt, max_length, limits) -> BeamState:
        state = super().begin(encoder_out, prompt, max_length, limits)
        state.detect_end = False
        return state

    def advance(self, states: Sequence[BeamState]) -> None:
        for state in states:
            # All or no running hypotheses are evaluated; in a forced prefix, all are.
            while not state.done and state.running[0].prefix.evaluated:
                self._expand(state)

    def _expand(self, state: BeamState) -> None:
        heads = {hypothesis.prefix: hypothesis.heads for hypothesis in state.running}
        candidates = [prefix.candidates for prefix in heads]
        beam = best_continuations(state.running, candidates, self.beam_size, self.scoring.eos)
        if not beam:
            check_numbers(gain for row in candidates for gain in row.gains)
        for prefix in heads:
            if state.trace is not None:
                state.trace.record_candidates(prefix)
            state.scorers.free_scores(prefix)
        self.finish_step(state, [replace(h, heads=(*heads[h.prefix.parent], 0)) for h in beam])


class ThresholdPlanner(StepPlanner):
    """Appends drafted tokens to each hypothesis, up to the first one below the threshold."""

    def __init__(
        self, strategy: ThresholdStrategy, proposer: Proposer | None, threshold: float, depth: int
    ):
        super().__init__(strategy, proposer, DraftShape(depth))
        self.threshold = threshold

    def draft_prompt(self, states: Sequence[BeamState]) -> None:
        for state in states:  # without drafts, because the base head predicts the first token
            state.draft = prompt_draft(state, self.strategy.scoring.constraints.forced_prefix)

    def draft(self, states: Sequence[BeamState]) -> None:
        chains = self._chains(states)
        for state in states:
            beam = [
                self._extend(state, hypothesis, chains.get(hypothesis.prefix, []))
                for hypothesis in state.running
            ]
            self.strategy.finish_step(state, beam)
            state.draft = Draft(state.running)
            for hypothesis in state.running:
                ancestors = hypothesis.prefix.ancestors()
                path = [*takewhile(lambda prefix: not prefix.evaluated, ancestors)][::-1]
                state.draft.nodes |= dict.fromkeys(path, hypothesis.score)
                state.draft.unqueried |= {*path[:-1]}

    def _room(self, state: BeamState, prefix: Prefix) -> int:
        """Return the maximum number of drafts; the base head predicts the last token."""
        return max(min(self.shape.depth, state.max_length - prefix.length - 1), 0)

    def _chains(
        self, states: Sequence[BeamState]
    ) -> dict[Prefix, list[tuple[float, float, float]]]:
        """Draft after all running hypotheses with room; the host reads all steps at once.

        Return token, log-probability and acceptance of each step, by the hypothesis's prefix.
        """
        pairs = [(state, hypothesis.prefix) for state in states for hypothesis in state.running]
        pairs = [pair for pair in pairs if self._room(*pair)]
        if not pairs:
            return {}
        prefixes = [prefix for _, prefix in pairs]
        rows = {parent: row for row, parent in enumerate(dict.fromkeys(p.parent for p in prefixes))}
        self.proposer.keep(prefixes)
        constraints, device = self.steps.scoring.constraints, self.steps.device
        eos, room = self.strategy.scoring.eos, [self._room(*pair) for pair in pairs]
        table = [[rows[p.parent] for p in prefixes], [p.token for p in prefixes],
                 [p.length for p in prefixes], room, [s.min_length for s, _ in pairs]]  # fmt: skip
        origins, tokens, lengths, places, least = torch.tensor(table, device=device)
        if all(prefix.length >= state.min_length for state, prefix in pairs):
            least = None
        draft_states, accepted, steps = self.proposer.start([*rows]).select(origins), places > 0, []
        for step in range(max(room)):
            draft_states = self.proposer.advance(draft_states, tokens)
            scores = self.proposer.logits(draft_states).float().log_softmax(dim=-1)
            log_probs, columns = constraints.apply(scores, lengths + step, least).max(dim=-1)
            tokens = self.proposer.token_ids(columns)
            accepted = accepted & exceeds(log_probs, self.threshold)
            steps.append(
                torch.stack([tokens.double(), log_probs.double(), accepted.double()], dim=-1)
            )
            accepted = accepted & (tokens != eos) & (step + 1 < places)
            # On a CPU this check is cheap; on a GPU it would synchronize.
            if accepted.device.type == "cpu" and not bool(accepted.any()):
                break
            # Draft models skip computations after an end symbol.
            tokens = tokens.masked_fill(~accepted, eos)
        count_cost(self.proposer, states)
        return dict(zip(prefixes, torch.stack(steps, dim=1).tolist(), strict=True))

    def _extend(
        self, state: BeamState, hypothesis: Hypothesis, chain: Sequence[tuple[float, float, float]]
    ) -> Hypothesis:
        prefix, score = hypothesis.prefix, hypothesis.score
        for token, log_prob, accepted in chain:
            if not accepted:
                break
            prefix, score = prefix.child(int(token)), score + log_prob
        count = prefix.length - hypothesis.prefix.length
        ended = prefix.token == self.strategy.scoring.eos
        drafted = count if ended else self._room(state, hypothesis.prefix)
        state.statistics.count_drafts(drafted, count)
        return Hypothesis(prefix, score, (score,), (*hypothesis.heads, *range(1, count + 1)))
