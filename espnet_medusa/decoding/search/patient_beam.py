"""Beam search with openai-whisper's stopping rule and ranking instead of ESPnet's.

A step keeps continuations, best first, until ``beam_size`` of them do not end. The search stops
after round(beam_size * patience) ended hypotheses (Kasai et al., "A Call for Clarity in Beam
Search", arXiv 2204.05424). The result has the best mean log-probability, or the best score under
Google's length penalty (Wu et al., arXiv 1609.08144, eq. 14).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

import torch

from espnet_medusa.decoding.search.beam import BeamState, BeamStrategy
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.drafting.lookahead import NO_DRAFTS, DraftShape
from espnet_medusa.decoding.search.drafting.step_planner import StepPlanner
from espnet_medusa.decoding.search.scores import DECODER_ALONE
from espnet_medusa.decoding.search.search import Search
from espnet_medusa.decoding.search.search_options import SearchOptions
from espnet_medusa.decoding.search.state import EndedHypothesis, Hypothesis, continuations
from espnet_medusa.decoding.tree.best_tokens import Restriction, TopTokens
from espnet_medusa.decoding.tree.proposer import Proposer
from espnet_medusa.decoding.tree.tree_decoder import TreeDecoder

PATIENCE = 1.0
NO_OPTIONS = SearchOptions()


def patient_beam_search(
    decoder: TreeDecoder,
    beam_size: int,
    constraints: Constraints,
    proposer: Proposer | None = None,
    shape: DraftShape = NO_DRAFTS,
    options: SearchOptions = NO_OPTIONS,
    nbest: int | None = None,
) -> Search:
    """Return a beam search that ends and ranks like openai-whisper; only the decoder scores.

    Arguments are those of ``beam_search``; ``options`` has the patience and the length penalty.
    """
    strategy = PatientStrategy(beam_size, constraints, decoder.top_tokens, options, nbest)
    return Search(decoder, StepPlanner(strategy, proposer, shape))


class PatientStrategy(BeamStrategy):
    """Beam search with openai-whisper's stopping rule and ranking.

    Log-probabilities are normalized over the allowed tokens.
    """

    def __init__(
        self,
        beam_size: int,
        constraints: Constraints,
        top_tokens: Callable[[torch.Tensor, int, Restriction | None], TopTokens],
        options: SearchOptions,
        nbest: int | None,
    ):
        constraints = replace(constraints, renormalize=True)
        super().__init__(DECODER_ALONE, beam_size, constraints, top_tokens, nbest=nbest)
        self.own_width = self.width = beam_size + 1  # the end symbol may be one of the best tokens
        self.length_penalty = options.length_penalty
        patience = PATIENCE if options.patience is None else options.patience
        self.max_ended = max(round(beam_size * patience), 1)

    def prune(self, beam, candidates) -> tuple[list[Hypothesis], bool]:
        survivors, missing = [], self.beam_size
        for hypothesis in continuations(beam, candidates, self.own_width):
            survivors.append(hypothesis)
            missing -= hypothesis.prefix.token != self.scoring.eos
            if missing == 0:
                break
        return survivors, missing == 0

    def finish_step(self, state: BeamState, beam: Sequence[Hypothesis]) -> None:
        eos, room = self.scoring.eos, self.max_ended - len(state.ended)
        state.running = [h for h in beam if h.prefix.token != eos]
        ended = [h for h in beam if h.prefix.token == eos and h.prefix.length > state.min_length]
        state.ended += [self.end(state, hypothesis) for hypothesis in ended[:room]]
        state.stopped = len(state.ended) >= self.max_ended
        if state.running and not state.stopped:
            state.stopped = self._gives_up(state)

    def _gives_up(self, state: BeamState) -> bool:
        """Return whether the best running hypothesis ranks first and ``give_up`` returns True."""
        best = max(state.running, key=attrgetter("score"))
        if not state.gives_up(best.prefix):
            return False
        rank = self._rank(self.end(state, best, append_eos=True))
        return all(self._rank(ended) < rank for ended in state.ended)

    def prune_drafted_beam(
        self, state: BeamState, beam: Sequence[Hypothesis]
    ) -> Sequence[Hypothesis]:
        return beam

    def finish(self, state: BeamState) -> None:
        missing = max(self.beam_size - len(state.ended), 0)
        best = sorted(state.running, key=attrgetter("score"), reverse=True)[:missing]
        state.ended += [self.end(state, hypothesis, append_eos=True) for hypothesis in best]
        state.ended = sorted(state.ended, key=self._rank, reverse=True)[: self.ranking.nbest]
        state.statistics.tokens = len(state.ended[0].tokens) if state.ended else 0

    def _rank(self, ended: EndedHypothesis) -> float:
        length, alpha = len(ended.tokens) - 1, self.length_penalty
        return ended.score / (max(length, 1) if alpha is None else ((5 + length) / 6) ** alpha)
