"""One utterance under way: what a search has decided, and what it waits for."""

from __future__ import annotations

import heapq
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import torch

from espnet_medusa.search.scores import PRE_BEAM_RATIO, Candidates, Scoring, UtteranceScorers
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.tree.prefix import Prefix


@dataclass(frozen=True)
class Hypothesis:
    """A prefix with its score.

    Attributes:
        prefix: Its tokens.
        score: Weighted sum of all scorers.
        parts: What each scorer gave, unweighted, in the order of ``Scoring.names``.
    """

    prefix: Prefix
    score: float = 0.0
    parts: tuple[float, ...] = ()


@dataclass(frozen=True)
class EndedHypothesis:
    """A finished hypothesis.

    Attributes:
        tokens: Behind the prompt, the end symbol included.
        score: Weighted sum.
        parts: Per scorer.
        length: Prompt included, as length normalisation counts.
    """

    tokens: list[int]
    score: float
    parts: tuple[float, ...]
    length: int


@dataclass
class Watched:
    """What the decoder gives to a token within the prompt, where no search asks.

    Attributes:
        place: Of the prompt's token behind which it is looked at.
        token: Which one.
        probability: Among all tokens, once the prompt is evaluated.
    """

    place: int
    token: int
    probability: float = math.nan


@dataclass
class Draft:
    """What the next decoder call shall evaluate for one utterance.

    Attributes:
        beam: Hypotheses that the run-ahead has reached.
        nodes: Prefixes to evaluate, ancestors first, and the scores they were drafted with.
        ends: Drafted ends of sentence; nothing follows them, so no call evaluates them.
        silent: Nodes that others stand on, of which nobody asks what follows.
        depth: Steps that were run ahead.
        limit: Steps that it may be run ahead; None: as far as anybody drafts.
        accepted: Of these steps, those that needed no further call.
    """

    beam: list[Hypothesis]
    nodes: dict[Prefix, float] = field(default_factory=dict)
    ends: dict[Prefix, float] = field(default_factory=dict)
    silent: set[Prefix] = field(default_factory=set)
    depth: int = 0
    limit: int | None = None
    accepted: int = 0

    @property
    def asked(self) -> list[Prefix]:
        """Nodes of which the search wants to know what follows, in order."""
        return [prefix for prefix in self.nodes if prefix not in self.silent]

    @property
    def may_go_on(self) -> bool:
        """Whether the run-ahead may take one more step."""
        return self.limit is None or self.depth < self.limit

    def visit(self, beam: Sequence[Hypothesis], max_length: int, eos: int) -> None:
        """Note the beam's unevaluated prefixes, let go of those that nothing may follow."""
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
    """The prompt, and what every hypothesis begins with."""
    prefix = state.root
    nodes = {prefix: 0.0}
    for token in forced[: state.max_length - 1]:
        prefix = prefix.child(token)
        nodes[prefix] = 0.0
    return Draft([], nodes)


@dataclass
class SearchState(ABC):
    """An utterance on its way through the tree.

    Attributes:
        root: The prompt.
        scorers: The utterance's scorers beside the decoder.
        max_length: Most tokens, an end symbol not counted.
        running: Hypotheses that go on.
        draft: What the last call evaluated.
        steps: Tokens decided so far.
        statistics: Counts.
        prompt_length: P.
        watched: A probability within the prompt that somebody wants to know.
    """

    root: Prefix
    scorers: UtteranceScorers
    max_length: int
    running: list[Hypothesis] = field(default_factory=list)
    draft: Draft | None = None
    steps: int = 0
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    prompt_length: int = 1
    watched: Watched | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def n_best(self) -> list[EndedHypothesis]:
        """What has ended; of a search that is over sorted, best first."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether nothing is left to decide."""

    def drafted(self, beam: Sequence[Hypothesis]) -> Sequence[Hypothesis]:
        """Those of a drafted beam that the search would go on with, were the draft right."""
        return beam


SpecialState = TypeVar("SpecialState", bound=SearchState)


def specialize(state: SearchState, kind: type[SpecialState], **own: Any) -> SpecialState:
    """A state that has just begun as one of a more special kind.

    Args:
        state: Nobody else goes on with it.
        kind: Has all of its fields.
        own: Fields that the kind has beside them, or has otherwise.
    """
    begun = {one.name: getattr(state, one.name) for one in fields(state)}
    return kind(**begun | own)


class Strategy(ABC):
    """How states go on: greedy search with an acceptance rule, or beam search.

    Args:
        scoring: How tokens are scored.
        width: Beam that candidates are kept for.
    """

    best_first = False  # under a node budget: promising drafts first, or whole steps first
    needs_draft_scores = False  # whether somebody asks how probable a lone draft was

    def __init__(self, scoring: Scoring, width: int):
        self.scoring = scoring
        self.width = width

    @abstractmethod
    def judge(self, states: Sequence[SearchState], logits: torch.Tensor) -> None:
        """Note what the decoder says of the drafts that it has just evaluated.

        Args:
            states: Their drafts' nodes are R in all.
            logits: (R, V) of these, state by state.
        """

    @abstractmethod
    def advance(self, states: Sequence[SearchState]) -> None:
        """Take all steps that evaluated prefixes allow."""

    def accept_unverified(self, states: Sequence[SearchState]) -> None:
        """Take drafts without asking the decoder; only the threshold rule does."""
        return


def best_continuations(
    beam: Sequence[Hypothesis], candidates: Sequence[Candidates], width: int, eos: int
) -> list[Hypothesis]:
    """The ``width`` best continuations of a beam, best first."""
    pre_beam = int(PRE_BEAM_RATIO * width)
    options = [
        (score, hypothesis, row, rank)
        for score, hypothesis, row, rank in _options(beam, candidates)
        if rank < pre_beam or row.tokens[rank] == eos
    ]
    best = heapq.nlargest(width, options, key=operator.itemgetter(0))
    return [_continued(*option) for option in best]


def continuations(
    beam: Sequence[Hypothesis], candidates: Sequence[Candidates], most: int
) -> Iterator[Hypothesis]:
    """All continuations of a beam, best first, at most so many of each hypothesis."""
    options = [option for option in _options(beam, candidates) if option[-1] < most]
    for option in sorted(options, key=operator.itemgetter(0), reverse=True):
        yield _continued(*option)


def _options(
    beam: Sequence[Hypothesis], candidates: Sequence[Candidates]
) -> Iterator[tuple[float, Hypothesis, Candidates, int]]:
    """Score, hypothesis, its candidates and the rank of one of these."""
    for hypothesis, row in zip(beam, candidates, strict=True):
        for rank, gain in enumerate(row.gains):
            if gain > -math.inf:
                yield hypothesis.score + gain, hypothesis, row, rank


def _continued(score: float, hypothesis: Hypothesis, row: Candidates, rank: int) -> Hypothesis:
    parts = zip(hypothesis.parts, row.parts, strict=False)
    parts = tuple(sofar + part[rank] for sofar, part in parts)
    return Hypothesis(hypothesis.prefix.child(row.tokens[rank]), score, parts)
