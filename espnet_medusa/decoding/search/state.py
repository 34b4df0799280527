"""The state of an utterance during a search, and the strategy that advances it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any

import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.ctc_window import Window
from espnet_medusa.decoding.search.scores import PRE_BEAM_RATIO, Request, Scoring, UtteranceScorers
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.decoding.tree.placement import Placement
from espnet_medusa.decoding.tree.prefix import Candidates, Prefix
from espnet_medusa.decoding.tree.proposer import DraftInput

GIVE_UP_STEPS = 16  # steps between two calls of ``give_up``


@dataclass(frozen=True)
class Hypothesis:
    """A prefix with its score."""

    prefix: Prefix
    score: float = 0.0  # weighted sum of all scorers
    # Unweighted score of each scorer, in the order of ``Scoring.names``.
    parts: tuple[float, ...] = ()
    # With the threshold rule in beam search, the head that produced each token: 0 for the base
    # head, else 1, 2, ...
    heads: tuple[int, ...] = ()
    window: Window | None = None  # of CTC's score of the last token; None: all frames


@dataclass(frozen=True)
class EndedHypothesis:
    """A finished hypothesis."""

    tokens: list[int]  # after the prompt, including the end symbol
    score: float  # weighted sum of all scorers
    parts: tuple[float, ...]  # score of each scorer
    length: int  # including the prompt, as in length normalization
    # As in ``Hypothesis``. An end symbol that is appended at the maximum length has no head,
    # because it has no score.
    heads: tuple[int, ...] = ()


@dataclass
class ProbedToken:
    """A token whose probability in the prompt is requested, such as Whisper's no-speech token."""

    index: int  # of the prompt token after which the probability is computed
    token: int
    probability: float = math.nan  # among all tokens, once the prompt is evaluated


@dataclass
class Draft:
    """The nodes of one utterance that the next decoder call evaluates."""

    beam: list[Hypothesis]  # hypotheses that the next step of the draft continues
    # Prefixes to evaluate, ancestors first, and their drafted scores.
    nodes: dict[Prefix, float] = field(default_factory=dict)
    # Drafted hypotheses that cannot continue; no call evaluates them.
    ends: dict[Prefix, float] = field(default_factory=dict)
    # Inner nodes whose next-token distribution is not needed.
    unqueried: set[Prefix] = field(default_factory=set)
    depth: int = 0  # steps that drafted a token
    limit: float = math.inf  # maximum number of steps, from the lookahead; inf: without one
    accepted_steps: int = 0

    @property
    def queried(self) -> list[Prefix]:
        """Nodes whose next-token distribution is needed, in order."""
        return [prefix for prefix in self.nodes if prefix not in self.unqueried]

    def visit(self, beam: Sequence[Hypothesis], max_length: int, eos: int) -> None:
        """Add the beam's unevaluated prefixes as nodes; drop hypotheses that cannot continue."""
        self.beam = []
        for hypothesis in beam:
            prefix = hypothesis.prefix
            if prefix.length >= max_length:
                continue
            if prefix.token == eos and prefix.parent is not None:
                self.ends[prefix] = hypothesis.score
                continue
            self.beam.append(hypothesis)
            if not prefix.evaluated:
                self.nodes[prefix] = hypothesis.score


def prompt_draft(state: SearchState, forced: Sequence[int]) -> Draft:
    """Return a draft of the prompt and the forced prefix."""
    prefix = state.root
    nodes = {prefix: 0.0}
    for token in forced[: state.max_length - 1]:
        prefix = prefix.child(token)
        nodes[prefix] = 0.0
    return Draft([], nodes)


@dataclass
class SearchState(ABC):
    """An utterance during a search."""

    root: Prefix  # the prompt
    scorers: UtteranceScorers  # scorers other than the decoder
    max_length: int  # maximum number of tokens without the end symbol
    running: list[Hypothesis] = field(default_factory=list)  # hypotheses that have not ended
    draft: Draft | None = None  # nodes of the last or the next decoder call
    steps: int = 0
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    prompt_length: int = 1  # P
    probed: ProbedToken | None = field(default=None, kw_only=True)
    # As in ``LengthLimits``.
    give_up: Callable[[list[int]], bool] | None = field(default=None, kw_only=True)
    trace: Any = field(default=None, kw_only=True)  # the ``Trace``; None: calls are not recorded
    placement: Placement | None = field(default=None, kw_only=True)  # slots in the token tree

    @property
    @abstractmethod
    def n_best(self) -> list[EndedHypothesis]:
        """Ended hypotheses; after the search sorted, best first."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the search is over."""

    def gives_up(self, prefix: Prefix) -> bool:
        """Return ``give_up`` of the best prefix every GIVE_UP_STEPS steps, else False."""
        due = self.give_up is not None and self.steps % GIVE_UP_STEPS == 0
        return due and self.give_up(prefix.tokens())


class Strategy(ABC):
    """How a search starts, scores, continues, ends and ranks hypotheses.

    ``width`` is the number of candidates to keep per prefix.
    """

    best_first = False  # whether a node budget drops the least probable drafts, not the last ones
    needs_draft_scores = False  # whether drafts of width 1 also need log-probabilities
    # Whether it writes the best tokens of ``best_tokens`` and nothing else.
    follows_best_tokens = False
    drafts_change_text = False  # whether the text depends on the drafts (not with exact)

    def __init__(self, scoring: Scoring, width: int):
        self.scoring = scoring
        self.own_width = self.width = width

    @abstractmethod
    def begin(
        self, encoder_out: torch.Tensor, prompt: torch.Tensor, max_length: int, limits: LengthLimits
    ) -> SearchState:
        """Return the initial state of an utterance with encoder output (S, D) and prompt (P,)."""

    def decide_early(
        self, states: Sequence[SearchState], draft_inputs: Sequence[DraftInput]
    ) -> Sequence[DraftInput]:
        """Decode utterances without a decoder call, if possible; return all U draft inputs."""
        return draft_inputs

    @abstractmethod
    def store_results(
        self, states: Sequence[SearchState], requests: Sequence[Request], logits: torch.Tensor
    ) -> None:
        """Store results of a decoder call in the prefixes.

        ``requests`` has the queried nodes of each state, and ``logits`` (R, V) those of all.
        """

    @abstractmethod
    def advance(self, states: Sequence[SearchState]) -> None:
        """Take all steps that the evaluated prefixes allow."""

    def accept_unverified(self, states: Sequence[SearchState]) -> None:
        """Accept drafts without a decoder call (threshold rule)."""
        return

    def prune_drafted_beam(
        self, state: SearchState, beam: Sequence[Hypothesis]
    ) -> Sequence[Hypothesis]:
        """Return the hypotheses of a drafted beam that may get into the n-best list."""
        return beam

    @abstractmethod
    def finish(self, state: SearchState) -> None:
        """Sort the n-best list and count tokens at the end of the search."""


def request_scores(
    scorers: UtteranceScorers, beam: Sequence[Hypothesis], prefixes: list[Prefix]
) -> Request:
    """Return a request for scores of some prefixes of a beam, in its step."""
    window = scorers.window([hypothesis.prefix for hypothesis in beam], beam[0].window)
    return Request(scorers, prefixes, window)


def check_numbers(scores: Iterable[float]) -> None:
    """Raise InputError if a score is NaN."""
    if any(map(math.isnan, scores)):
        raise InputError(
            "the scores of the next token are NaN; allowed: numbers; set encoder_precision and "
            "decoder_precision: float32, or check the weights of the model"
        )


def best_continuations(
    beam: Sequence[Hypothesis], candidates: Sequence[Candidates], width: int, eos: int
) -> list[Hypothesis]:
    """Return the ``width`` best continuations of a beam, best first."""
    return [*islice(continuations(beam, candidates, int(PRE_BEAM_RATIO * width), eos), width)]


def continuations(
    beam: Sequence[Hypothesis], candidates: Sequence[Candidates], most: int, eos: int | None = None
) -> Iterator[Hypothesis]:
    """Yield continuations, best first: each hypothesis's ``most`` best, and that with ``eos``."""
    options = [
        (hypothesis.score + gain, hypothesis, row, rank)
        for hypothesis, row in zip(beam, candidates, strict=True)
        for rank, gain in enumerate(row.gains)
        if gain > -math.inf and (rank < most or row.tokens[rank] == eos)
    ]
    for score, hypothesis, row, rank in sorted(options, key=itemgetter(0), reverse=True):
        parts = zip(hypothesis.parts, row.parts, strict=False)
        parts = tuple(total + part[rank] for total, part in parts)
        prefix = hypothesis.prefix.child(row.tokens[rank])
        yield Hypothesis(prefix, score, parts, window=row.window)
