"""openai-whisper's end of a beam and its ranking, in place of ESPnet's.

A step keeps the best ``beam_size`` hypotheses that have not ended, and puts those that have and
rank above them aside. The search is over when round(beam_size * patience) are aside (Kasai et al.,
"A Call for Clarity in Beam Search", arXiv 2204.05424). Who wins has the best mean log-probability,
or the best one by Google's length penalty (Wu et al., arXiv 1609.08144, eq. 14).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.ahead.shape import PLAIN, DraftShape
from espnet_medusa.search.beam import BeamSearch, BeamState, BeamStrategy
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.options import LengthLimits, SearchOptions
from espnet_medusa.search.scores import DECODER, Candidates, Scoring
from espnet_medusa.search.state import EndedHypothesis, Hypothesis, continuations, specialize
from espnet_medusa.tree.proposer import Proposer
from espnet_medusa.tree.tree_decoder import TreeDecoder

PATIENCE = 1.0
NO_OPTIONS = SearchOptions()


class PatientBeamSearch(BeamSearch):
    """Exact, several steps per decoder call; log-probabilities are among what may come.

    Args:
        decoder: Evaluates nodes; it scores alone.
        beam_size: B.
        constraints: Which tokens may come where.
        proposer: Drafts; None with ``shape.depth`` 0.
        shape: How far and how wide to draft.
        options: When it ends and who wins.
        nbest: Hypotheses asked for; None: all that end.
    """

    def __init__(
        self,
        decoder: TreeDecoder,
        beam_size: int,
        constraints: Constraints,
        proposer: Proposer | None = None,
        shape: DraftShape = PLAIN,
        options: SearchOptions = NO_OPTIONS,
        nbest: int | None = None,
    ):
        constraints = replace(constraints, renormalize=True)
        super().__init__(decoder, {}, None, {DECODER: 1.0}, beam_size, constraints, nbest=nbest)
        strategy = PatientStrategy(self.strategy.scoring, beam_size, shape.width)
        self.drafter = RunAhead(strategy, proposer, shape)
        self.options = options
        patience = PATIENCE if options.patience is None else options.patience
        self.most_ended = max(round(beam_size * patience), 1)

    def _begin(
        self, memory: torch.Tensor, prompt: torch.Tensor, limits: LengthLimits
    ) -> PatientState:
        state = super()._begin(memory, prompt, limits)
        return specialize(state, PatientState, most_ended=self.most_ended)

    def _finish(self, state: PatientState) -> None:
        missing = max(self.strategy.beam_size - len(state.ended), 0)
        best = sorted(state.running, key=lambda one: one.score, reverse=True)
        state.ended += [state.end(one, [state.eos]) for one in best[:missing]]
        state.ended.sort(key=self._rank, reverse=True)
        state.ended = state.ended[: self.ranking.nbest]
        state.statistics.tokens = len(state.ended[0].tokens) if state.ended else 0

    def _rank(self, ended: EndedHypothesis) -> float:
        length, alpha = len(ended.tokens) - 1, self.options.length_penalty
        return ended.score / (max(length, 1) if alpha is None else ((5 + length) / 6) ** alpha)


@dataclass
class PatientState(BeamState):
    """An utterance under patient beam search.

    Attributes:
        most_ended: Hypotheses that end it.
    """

    most_ended: int = 1

    def finish_step(self, beam: list[Hypothesis]) -> None:
        self.steps += 1
        ended = [one for one in beam if one.prefix.token == self.eos]
        self.running = [one for one in beam if one.prefix.token != self.eos]
        long_enough = [one for one in ended if one.prefix.length > self.min_length]
        room = self.most_ended - len(self.ended)
        self.ended += [self.end(one) for one in long_enough[:room]]
        self.stopped = len(self.ended) >= self.most_ended

    def end(self, hypothesis: Hypothesis, symbol: Sequence[int] = ()) -> EndedHypothesis:
        """A hypothesis that goes on no more; ``symbol``: the end symbol where it lacks it."""
        tokens = [*hypothesis.prefix.tokens(), *symbol]
        length = self.prompt_length + len(tokens)
        return EndedHypothesis(tokens, hypothesis.score, hypothesis.parts, length)

    def drafted(self, beam: Sequence[Hypothesis]) -> Sequence[Hypothesis]:
        return beam


class PatientStrategy(BeamStrategy):
    """Beam search that keeps so many hypotheses beside those that have ended.

    Args:
        scoring, beam_size, draft_width: As ``BeamStrategy``'s.
    """

    def __init__(self, scoring: Scoring, beam_size: int, draft_width: int = 0):
        # One of a hypothesis's best tokens may be the end symbol.
        super().__init__(scoring, beam_size, max(beam_size + 1, draft_width))

    def best(
        self, beam: Sequence[Hypothesis], candidates: Sequence[Candidates]
    ) -> tuple[list[Hypothesis], bool]:
        kept, missing = [], self.beam_size
        for one in continuations(beam, candidates, self.beam_size + 1):
            kept.append(one)
            missing -= one.prefix.token != self.scoring.eos
            if missing == 0:
                break
        return kept, missing == 0
