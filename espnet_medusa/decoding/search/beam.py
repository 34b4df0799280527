"""ESPnet's BatchBeamSearch over prefixes: same scores, pruning and end detection.

A step needs the next-token scores of each running hypothesis whose continuations may enter the
beam. If decoder calls have evaluated all of these already, the step needs no further call.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.ctc_prefix import CTCPrefix
from espnet_medusa.decoding.search.drafting.lookahead import NO_DRAFTS, DraftShape
from espnet_medusa.decoding.search.drafting.step_planner import StepPlanner
from espnet_medusa.decoding.search.ranking import MARGIN, Ranking
from espnet_medusa.decoding.search.scores import (
    CTC,
    DECODER,
    Request,
    Scorers,
    Scoring,
    UtteranceScorers,
)
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.state import (
    EndedHypothesis,
    Hypothesis,
    SearchState,
    Strategy,
    best_continuations,
    check_numbers,
    request_scores,
)
from espnet_medusa.decoding.tree.best_tokens import Restriction, TopTokens, top_tokens
from espnet_medusa.decoding.tree.prefix import Candidates, Prefix
from espnet_medusa.decoding.tree.proposer import Proposer
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder

# Scorers whose scores are at most 0; those of ``scorefilter`` are 0 or -inf.
LOG_PROBABILITIES = frozenset([DECODER, CTC, "lm", "ngram", "scorefilter"])
LENGTH_BONUS = "length_bonus"  # 1 for every token
END_LENGTHS = 3  # end detection: number of consecutive lengths to compare
END_GAP = -10.0  # end detection: score difference from the best hypothesis


def beam_search(
    decoder: TreeDecoder,
    scorers: Scorers,
    beam_size: int,
    constraints: Constraints,
    proposer: Proposer | None = None,
    shape: DraftShape = NO_DRAFTS,
    normalize_length: bool = False,
    nbest: int | None = None,
) -> Search:
    """Return an exact beam search.

    Args:
        scorers: Scorers other than the decoder, and the weights of all.
        proposer: The drafter; None if ``shape.depth`` is 0.
        normalize_length: Rank ended hypotheses by score over length.
        nbest: Number of requested hypotheses; the search stops when they are final. None: all.
    """
    top = decoder.top_tokens
    strategy = BeamStrategy(scorers, beam_size, constraints, top, normalize_length, nbest)
    return Search(decoder, StepPlanner(strategy, proposer, shape))


@dataclass
class BeamState(SearchState):
    """An utterance during beam search."""

    uncounted: int = 0  # prompt tokens that do not count as output: ``Scorers.prompt_counts``
    min_length: int = 0  # hypotheses that end earlier are dropped
    detect_end: bool = True  # whether to stop by ``end_detected`` (ESPnet's maxlenratio 0)
    ended: list[EndedHypothesis] = field(default_factory=list)  # in the order of their ends
    stopped: bool = False  # whether the search has ended before ``max_length``

    @property
    def n_best(self) -> list[EndedHypothesis]:
        return self.ended

    @property
    def done(self) -> bool:
        return self.stopped or not self.running or self.steps >= self.max_length


class BeamStrategy(Strategy):
    """Beam search with ESPnet's scorers, end detection and ranking.

    Arguments are those of ``beam_search``, and the decoder's ``top_tokens``. ``gain`` is the
    largest amount, at least 0, that a token can add to a score; inf: unknown.
    """

    def __init__(
        self,
        scorers: Scorers,
        beam_size: int,
        constraints: Constraints,
        top_tokens: Callable[[torch.Tensor, int, Restriction | None], TopTokens] = top_tokens,
        normalize_length: bool = False,
        nbest: int | None = None,
    ):
        weights = scorers.active_weights
        scoring = Scoring(weights, constraints.eos, constraints, top_tokens=top_tokens)
        super().__init__(scoring, beam_size)
        self.beam_size = beam_size
        self.needs_draft_scores = beam_size > 1  # to compare the hypotheses of a beam
        self.full = {name: scorer for name, scorer in scorers.full.items() if name in weights}
        self.ctc = scorers.ctc if CTC in weights else None
        self.prompt_counts = scorers.prompt_counts
        self.window_margin = scorers.ctc_window_margin if self.ctc is not None else 0
        others = dict(weights)
        self.gain = max(others.pop(LENGTH_BONUS, 0.0), 0.0)
        falling = all(name in LOG_PROBABILITIES and weight >= 0 for name, weight in others.items())
        if not falling or constraints.penalty is not None:
            self.gain = math.inf
        self.ranking = Ranking(nbest, self.gain, normalize_length)

    def begin(self, encoder_out, prompt, max_length, limits) -> BeamState:
        ctc, uncounted = None, 0 if self.prompt_counts else len(prompt) - 1
        if self.ctc is not None:
            log_probs, length = self.ctc(encoder_out[None])[0], len(prompt) - uncounted
            ctc = CTCPrefix(log_probs, 0, self.scoring.eos, length, self.window_margin)
        root = Prefix(int(prompt[-1]))
        return BeamState(
            root,
            UtteranceScorers(self.full, encoder_out, prompt, ctc),
            max_length,
            [Hypothesis(root, 0.0, (0.0,) * len(self.scoring.names))],
            prompt_length=len(prompt),
            uncounted=uncounted,
            min_length=limits.least(len(encoder_out)),
            detect_end=limits.maxlenratio == 0,
        )

    def store_results(self, states, requests: Sequence[Request], logits: torch.Tensor) -> None:
        """Store candidates if only the decoder scores; else logits, for ``find_candidates``."""
        nodes = [prefix for request in requests for prefix in request.prefixes]
        if self.scoring.decoder_alone:
            rows = self.scoring.candidates(requests, logits, self.width)
            for prefix, candidates in zip(nodes, rows, strict=True):
                prefix.candidates = candidates
        else:
            for prefix, row in zip(nodes, logits, strict=True):
                prefix.logits = row

    def advance(self, states: Sequence[BeamState]) -> None:
        states = [state for state in states if not state.done]
        while states:
            requests = [
                request_scores(
                    state.scorers,
                    state.running,
                    [h.prefix for h in state.running if h.prefix.evaluated],
                )
                for state in states
            ]
            self.scoring.find_candidates(requests, self.width)
            states = [state for state in states if self._step(state) and not state.done]

    def _step(self, state: BeamState) -> bool:
        """Take a step; return False if it depends on an unevaluated hypothesis."""
        known = [hyp for hyp in state.running if hyp.prefix.evaluated]
        candidates = [hyp.prefix.candidates for hyp in known]
        beam, full = self.prune(known, candidates)
        if not beam:
            check_numbers(gain for row in candidates for gain in row.gains)
        if len(known) < len(state.running):
            unknown = max(hyp.score for hyp in state.running if not hyp.prefix.evaluated)
            # A continuation, which adds at most ``gain``, may still enter the beam.
            if not full or beam[-1].score <= unknown + self.gain + MARGIN:
                return False
        for hypothesis in known:
            if state.trace is not None:
                state.trace.record_candidates(hypothesis.prefix)
            state.scorers.free_scores(hypothesis.prefix)
        state.steps += 1
        self.finish_step(state, beam)
        return True

    def prune(
        self, beam: Sequence[Hypothesis], candidates: Sequence[Candidates]
    ) -> tuple[list[Hypothesis], bool]:
        """Return the surviving continuations, best first, and whether the beam is full."""
        survivors = best_continuations(beam, candidates, self.beam_size, self.scoring.eos)
        return survivors, len(survivors) == self.beam_size

    def finish_step(self, state: BeamState, beam: Sequence[Hypothesis]) -> None:
        """Divide the beam into ended and running hypotheses, like ESPnet's ``post_process``."""
        state.running = []
        for hypothesis in beam:
            prefix, last = hypothesis.prefix, hypothesis.prefix.length == state.max_length
            if prefix.token != self.scoring.eos and not last:
                state.running.append(hypothesis)
            elif prefix.length > state.min_length:
                state.ended.append(self.end(state, hypothesis, append_eos=last))
        step = state.steps - 1 + state.uncounted
        state.stopped = state.detect_end and end_detected(state.ended, step)
        may_reach_nbest = self.ranking.may_reach_nbest(state, state.running, state.ended)
        # End detection and CTC's window depend on all hypotheses, so they stay while one of them
        # may reach the list.
        if not (may_reach_nbest and (state.detect_end or self.window_margin > 0)):
            state.running = may_reach_nbest

    def end(
        self, state: BeamState, hypothesis: Hypothesis, append_eos: bool = False
    ) -> EndedHypothesis:
        tokens = hypothesis.prefix.tokens() + [self.scoring.eos] * append_eos
        length = state.prompt_length + len(tokens)
        return EndedHypothesis(tokens, hypothesis.score, hypothesis.parts, length, hypothesis.heads)

    def prune_drafted_beam(
        self, state: BeamState, beam: Sequence[Hypothesis]
    ) -> Sequence[Hypothesis]:
        eos = self.scoring.eos
        ends = state.draft.ends | {h.prefix: h.score for h in beam if h.prefix.token == eos}
        ended = [
            EndedHypothesis([], score, (), state.prompt_length + prefix.length)
            for prefix, score in ends.items()
            if prefix.length > state.min_length
        ]
        return self.ranking.may_reach_nbest(state, beam, state.ended + ended)

    def finish(self, state: BeamState) -> None:
        state.ended = self.ranking.best(state.ended)
        state.statistics.tokens = len(state.ended[0].tokens) if state.ended else 0


def end_detected(ended: Sequence[EndedHypothesis], step: int) -> bool:
    """Return whether each of the last lengths has ended hypotheses, all far below the best one.

    Eq. 50 of Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End Speech
    Recognition", with ESPnet's constants. ``step``: earlier steps and ``uncounted`` tokens.
    """
    best = max((hypothesis.score for hypothesis in ended), default=-math.inf)
    for length in range(step, step - END_LENGTHS, -1):
        scores = [hypothesis.score for hypothesis in ended if hypothesis.length == length]
        if not scores or max(scores) - best >= END_GAP:
            return False
    return True
