"""Ranking of ended hypotheses, and an upper bound of the rank of running ones.

A running hypothesis cannot reach the n-best list if the list is full and its bound is below the
last entry. Bounds do not rise with further steps, so its continuations cannot reach the list,
either. The search can drop it: the hypotheses that replace it in the beam have lower scores. The
n-best list does not change.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from espnet_medusa.decoding.search.state import EndedHypothesis, Hypothesis, SearchState

MARGIN = 1e-4  # rounding of scores


@dataclass(frozen=True)
class Ranking:
    nbest: int | None = None  # length of the n-best list; None: all hypotheses that end
    gain: float = 0.0  # as in ``BeamStrategy``
    normalize_length: bool = False  # rank by score over length

    def best(self, ended: Sequence[EndedHypothesis]) -> list[EndedHypothesis]:
        """Return the n-best list, best first; among equals the one that ended first."""
        return sorted(ended, key=self._rank_of, reverse=True)[: self.nbest]

    def may_reach_nbest(
        self, state: SearchState, running: Sequence[Hypothesis], ended: Sequence[EndedHypothesis]
    ) -> list[Hypothesis]:
        """Return the running hypotheses of an utterance that may still get into the n-best list."""
        if self.nbest is None or len(ended) < self.nbest:
            return [*running]
        last = heapq.nlargest(self.nbest, map(self._rank_of, ended))[-1]
        return [h for h in running if self._bound(state, h) >= last - MARGIN]

    def _bound(self, state: SearchState, hypothesis: Hypothesis) -> float:
        """Return an upper bound of the rank of all continuations: each further token adds ``gain``.

        Score over length is then largest at the maximum length, because no earlier token added more
        than ``gain``. An end symbol that is appended there only adds length.
        """
        score = hypothesis.score + self.gain * (state.max_length - hypothesis.prefix.length)
        longest = state.prompt_length + state.max_length
        return max(self._rank(score, longest), self._rank(score, longest + 1))

    def _rank_of(self, ended: EndedHypothesis) -> float:
        return self._rank(ended.score, ended.length)

    def _rank(self, score: float, length: int) -> float:
        return score / (length - 1) if self.normalize_length else score
