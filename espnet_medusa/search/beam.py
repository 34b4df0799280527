"""ESPnet's BatchBeamSearch over prefixes: same scores, same pruning, same end.

A step needs what follows each running hypothesis. Where the last decoder call has evaluated them
all, the step costs no call.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from espnet_medusa.search.ahead.run_ahead import RunAhead
from espnet_medusa.search.ahead.shape import PLAIN, DraftShape
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.ctc_prefix import CTCPrefix
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.ranking import MARGIN, Ranking
from espnet_medusa.search.scores import (
    CANDIDATES,
    CTC,
    DECODER,
    Candidates,
    Request,
    Scoring,
    UtteranceScorers,
)
from espnet_medusa.search.search import AS_MANY_AS_FRAMES, Limits, Search
from espnet_medusa.search.state import (
    EndedHypothesis,
    Hypothesis,
    SearchState,
    Strategy,
    Watched,
    best_continuations,
)
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftInput, Proposer
from espnet_medusa.tree.tree_decoder import TreeDecoder

NEVER_GAIN = frozenset([DECODER, CTC, "lm", "ngram"])  # log-probabilities: at most 0
LENGTH_BONUS = "length_bonus"  # 1 for every token
END_LENGTHS = 3  # lengths in a row whose best hypotheses are hopeless,
END_GAP = -10.0  # that is, so far below the best of all
SHORTER = 0.1  # ESPnet's step of minlenratio when no hypothesis was long enough


class BeamSearch(Search):
    """Exact beam search, several steps per decoder call; without drafts one.

    Args:
        decoder: Evaluates nodes.
        scorers: ESPnet's full scorers beside the decoder, by name.
        ctc: ``(memory (1, S, D)) -> (1, S, V)`` log-probabilities of the CTC branch; None without.
        weights: By scorer name; those at 0 do not count.
        beam_size: B.
        constraints: Which tokens may come where.
        proposer: Drafts; None with ``shape.depth`` 0.
        shape: How far and how wide to draft.
        normalize_length: Rank finished hypotheses by score over length.
        nbest: Hypotheses asked for; the search ends when they are decided. None: all that end.
    """

    def __init__(
        self,
        decoder: TreeDecoder,
        scorers: Mapping[str, Any],
        ctc: Callable[[torch.Tensor], torch.Tensor] | None,
        weights: Mapping[str, float],
        beam_size: int,
        constraints: Constraints,
        proposer: Proposer | None = None,
        shape: DraftShape = PLAIN,
        normalize_length: bool = False,
        nbest: int | None = None,
    ):
        names = [DECODER, *scorers, *([CTC] if ctc is not None else [])]
        weights = {name: weights[name] for name in names if weights.get(name, 0) != 0}
        scoring = Scoring(weights, constraints.eos, constraints, top_tokens=decoder.top_tokens)
        strategy = BeamStrategy(scoring, beam_size, shape.width)
        super().__init__(decoder, RunAhead(strategy, proposer, shape))
        self.scorers = {name: scorer for name, scorer in scorers.items() if name in weights}
        self.ctc = ctc if CTC in weights else None
        self.ranking = Ranking(nbest, strategy.gain, normalize_length)

    def __call__(
        self,
        memory: torch.Tensor,
        memory_lengths: torch.Tensor,
        prompt: Sequence[torch.Tensor] | torch.Tensor,
        limits: Limits = AS_MANY_AS_FRAMES,
        draft_inputs: Sequence[DraftInput] | None = None,
        watched: Sequence[Watched] | None = None,
    ) -> list["BeamState"]:
        limits = [limits] * len(memory) if isinstance(limits, LengthLimits) else limits
        states = super().__call__(memory, memory_lengths, prompt, limits, draft_inputs, watched)
        # As ESPnet: where nothing was long enough, shorter ones may do.
        empty = [
            row
            for row, state in enumerate(states)
            if not state.ended and limits[row].minlenratio >= SHORTER
        ]
        if empty:
            shorter = [
                replace(limits[row], minlenratio=limits[row].minlenratio - SHORTER) for row in empty
            ]
            inputs = draft_inputs and [draft_inputs[row] for row in empty]
            prompts = [prompt[row] for row in empty]
            again = self(memory[empty], memory_lengths[empty], prompts, shorter, inputs)
            for row, state in zip(empty, again, strict=True):
                state.statistics += states[row].statistics
                states[row] = state
        return states

    def _begin(
        self, memory: torch.Tensor, prompt: torch.Tensor, limits: LengthLimits
    ) -> "BeamState":
        frames = len(memory)
        ctc = None
        if self.ctc is not None:
            log_probs = self.ctc(memory[None])[0]
            ctc = CTCPrefix(log_probs, 0, self.strategy.scoring.eos, len(prompt))
        root = Prefix(int(prompt[-1]))
        nothing = (0.0,) * len(self.strategy.scoring.names)
        return BeamState(
            root,
            UtteranceScorers(self.scorers, memory, prompt, ctc),
            max_length=self._most_tokens(frames, len(prompt), limits),
            running=[Hypothesis(root, 0.0, nothing)],
            min_length=limits.least(frames),
            prompt_length=len(prompt),
            eos=self.strategy.scoring.eos,
            ranking=self.ranking,
            detect_end=limits.maxlenratio == 0,
        )

    def _finish(self, state: "BeamState") -> None:
        state.ended = self.ranking.best(state.ended)
        state.statistics.tokens = len(state.ended[0].tokens) if state.ended else 0


@dataclass
class BeamState(SearchState):
    """An utterance under beam search.

    Attributes:
        min_length: Hypotheses that end earlier are dropped.
        eos: End symbol.
        ranking: Which running hypotheses may still get into the n-best list.
        detect_end: Stop when ended hypotheses no longer improve (ESPnet's maxlenratio 0).
        ended: Finished hypotheses, in the order in which they ended.
    """

    min_length: int = 0
    eos: int = -1
    ranking: Ranking = Ranking()
    detect_end: bool = True
    ended: list[EndedHypothesis] = field(default_factory=list)
    stopped: bool = False

    @property
    def n_best(self) -> list[EndedHypothesis]:
        return self.ended

    @property
    def done(self) -> bool:
        return self.stopped or not self.running or self.steps >= self.max_length

    def finish_step(self, beam: list[Hypothesis]) -> None:
        """What ESPnet's ``post_process`` and end detection do."""
        step, self.steps = self.steps, self.steps + 1
        last = self.steps == self.max_length
        self.running = []
        for hypothesis in beam:
            if hypothesis.prefix.token != self.eos and not last:
                self.running.append(hypothesis)
            elif step >= self.min_length:
                tokens = hypothesis.prefix.tokens() + [self.eos] * last
                length = self.prompt_length + len(tokens)
                self.ended.append(
                    EndedHypothesis(tokens, hypothesis.score, hypothesis.parts, length)
                )
        self.stopped = self.detect_end and end_detected(self.ended, step)
        hopeful = self.hopeful()
        # End detection looks at hopeless hypotheses, too.
        if not (hopeful and self.detect_end):
            self.running = hopeful

    def hopeful(self) -> list[Hypothesis]:
        """Running hypotheses that may still get into the n-best list."""
        return self.ranking.hopeful(self.running, self.ended, self.max_length, self.prompt_length)

    def drafted(self, beam: list[Hypothesis]) -> list[Hypothesis]:
        ends = self.draft.ends | {h.prefix: h.score for h in beam if h.prefix.token == self.eos}
        ended = [
            EndedHypothesis([], score, (), self.prompt_length + prefix.length)
            for prefix, score in ends.items()
            if prefix.length > self.min_length
        ]
        return self.ranking.hopeful(beam, self.ended + ended, self.max_length, self.prompt_length)


class BeamStrategy(Strategy):
    """Beam search.

    Args:
        scoring: Weights and constraints.
        beam_size: B.
        draft_width: Candidates are kept for a drafted beam of this width, too.

    Attributes:
        gain: Most that one more token adds to a score, 0 or more; inf: unknown.
    """

    def __init__(self, scoring: Scoring, beam_size: int, draft_width: int = 0):
        super().__init__(scoring, max(beam_size, draft_width))
        self.beam_size = beam_size
        self.needs_draft_scores = beam_size > 1  # hypotheses compete for a lone draft
        weights = dict(scoring.weights)
        self.gain = max(weights.pop(LENGTH_BONUS, 0.0), 0.0)
        falling = all(name in NEVER_GAIN and weight >= 0 for name, weight in weights.items())
        if not falling or scoring.constraints.can_raise:
            self.gain = math.inf

    def judge(self, states: Sequence[BeamState], logits: torch.Tensor) -> None:
        """Candidates at once where the decoder alone scores; others are asked when it is time."""
        requests = [Request(state.scorers, state.draft.asked) for state in states]
        nodes = [prefix for request in requests for prefix in request.prefixes]
        if self.scoring.decoder_alone:
            candidates = self.scoring.candidates(requests, logits, self.width)
            for prefix, found in zip(nodes, candidates, strict=True):
                prefix.memo[CANDIDATES] = found
        else:
            for prefix, row in zip(nodes, logits, strict=True):
                prefix.logits = row

    def advance(self, states: Sequence[BeamState]) -> None:
        states = [state for state in states if not state.done]
        while states:
            self.scoring.find_candidates(
                [Request(state.scorers, _evaluated(state.running)) for state in states], self.width
            )
            states = [state for state in states if self._step(state) and not state.done]

    def best(
        self, beam: Sequence[Hypothesis], candidates: Sequence[Candidates]
    ) -> tuple[list[Hypothesis], bool]:
        """The continuations that survive, best first, and whether there is no room for more."""
        kept = best_continuations(beam, candidates, self.beam_size, self.scoring.eos)
        return kept, len(kept) == self.beam_size

    def _step(self, state: BeamState) -> bool:
        """Take a step; False when an unevaluated hypothesis could still matter."""
        known = [hyp for hyp in state.running if hyp.prefix.evaluated]
        candidates = [hyp.prefix.memo[CANDIDATES] for hyp in known]
        beam, enough = self.best(known, candidates)
        if len(known) < len(state.running):
            unknown = max(hyp.score for hyp in state.running if not hyp.prefix.evaluated)
            # Scores only fall: who is below the worst survivor needs no evaluation.
            if not enough or beam[-1].score <= unknown + self.gain + MARGIN:
                return False
        for hypothesis in known:
            state.scorers.settle(hypothesis.prefix)
        state.finish_step(beam)
        return True


def end_detected(ended: Sequence[EndedHypothesis], step: int) -> bool:
    """Whether hypotheses that end now no longer come near the best.

    Eq. 50 of Watanabe et al., "Hybrid CTC/Attention Architecture for End-to-End Speech
    Recognition", with ESPnet's constants.

    Args:
        ended: Finished hypotheses.
        step: Steps before this one.
    """
    best = max((hypothesis.score for hypothesis in ended), default=-math.inf)
    for length in range(step, step - END_LENGTHS, -1):
        scores = [hypothesis.score for hypothesis in ended if hypothesis.length == length]
        if not scores or max(scores) - best >= END_GAP:
            return False
    return True


def _evaluated(hypotheses: Sequence[Hypothesis]) -> list[Prefix]:
    return [hyp.prefix for hyp in hypotheses if hyp.prefix.evaluated]
