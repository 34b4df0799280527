"""Who gets into the n-best list: how ended hypotheses rank, and how far running ones can reach.

With ended hypotheses for every place, a running one that cannot come before the last of them is
hopeless, and so are all its continuations: what a score can still reach only falls from step to
step. The search needs none of them. A step keeps the best continuations, and the hopeful ones are
better than every hopeless one; so those that it keeps are decided among themselves, and what
comes up in a beam where a hopeless hypothesis is missing is hopeless as well. ESPnet sorts
stably, so that later equals come behind.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from espnet_medusa.search.state import EndedHypothesis, Hypothesis

MARGIN = 1e-4  # rounding of scores
AnyHypothesis = TypeVar("AnyHypothesis", bound=Hypothesis)


@dataclass(frozen=True)
class Ranking:
    """How an utterance's n-best list comes about.

    Attributes:
        nbest: Its places; None: one for each hypothesis that ends.
        gain: Most that one more token adds to a score, 0 or more; inf: unknown.
        normalize_length: Rank by score over length.
    """

    nbest: int | None = None
    gain: float = 0.0
    normalize_length: bool = False

    def best(self, ended: Sequence[EndedHypothesis]) -> list[EndedHypothesis]:
        """The n-best list, best first; among equals who ended first."""
        return sorted(ended, key=self._rank_of, reverse=True)[: self.nbest]

    def hopeful(
        self,
        running: Sequence[AnyHypothesis],
        ended: Sequence[EndedHypothesis],
        max_length: int,
        prompt_length: int,
    ) -> list[AnyHypothesis]:
        """The running hypotheses that may still get a place, or whose continuations may.

        Args:
            running: Shorter than ``max_length``.
            ended: All so far.
            max_length: Most tokens behind the prompt; an end symbol may follow them.
            prompt_length: P.
        """
        if self.nbest is None or len(ended) < self.nbest:
            return [*running]
        last = heapq.nlargest(self.nbest, map(self._rank_of, ended))[-1]
        return [
            hypothesis
            for hypothesis in running
            if self._within_reach(hypothesis, max_length, prompt_length) >= last - MARGIN
        ]

    def _within_reach(self, hypothesis: Hypothesis, max_length: int, prompt_length: int) -> float:
        """A rank that none of its continuations exceeds.

        Score over length grows with every token that adds the full gain, as none before it has
        added more; the end symbol that the maximum length appends adds nothing but length.
        """
        score = hypothesis.score + self.gain * (max_length - hypothesis.prefix.length)
        longest = prompt_length + max_length
        return max(self._rank(score, longest), self._rank(score, longest + 1))

    def _rank_of(self, ended: EndedHypothesis) -> float:
        return self._rank(ended.score, ended.length)

    def _rank(self, score: float, length: int) -> float:
        return score / (length - 1) if self.normalize_length else score
