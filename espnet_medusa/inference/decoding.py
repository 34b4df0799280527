"""What a search has found becomes text: ESPnet's n-best results."""

import logging
from dataclasses import dataclass
from typing import Any

import torch

from espnet_medusa.longform.segment import Segment
from espnet_medusa.search.state import EndedHypothesis, SearchState
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.upstream.compat import Hypothesis

logger = logging.getLogger(__name__)

Result = tuple[str | None, list[str], list[int], Hypothesis]


@dataclass(frozen=True)
class Decoding:
    """What one utterance gave.

    Attributes:
        results: N-best list of text, tokens, token ids and hypothesis; empty when none ended.
        statistics: What it cost.
        language: Code, where it is known which.
        segments: With their times, of long audio; None: there are none.
    """

    results: list[Result]
    statistics: DecodingStatistics
    language: str | None = None
    segments: tuple[Segment, ...] | None = None


@dataclass(frozen=True)
class TextWriter:
    """Tokens to text.

    Attributes:
        converter: ESPnet's, ids to tokens.
        tokenizer: ESPnet's, tokens to text; None: there is no text.
        hidden_ids: Tokens that are left out.
        nbest: Most results of an utterance.
    """

    converter: Any
    tokenizer: Any
    hidden_ids: frozenset[int]
    nbest: int

    def write(self, state: SearchState, prompt: list[int], scorers: list[str]) -> Decoding:
        """Of one utterance.

        Args:
            state: Of a search that is over.
            prompt: P tokens that it started from.
            scorers: Names of its scores' parts.
        """
        results = [self._result(ended, prompt, scorers) for ended in state.n_best[: self.nbest]]
        if results:
            text = results[0][0]
            state.statistics.words = 0 if text is None else len(text.split())
        else:
            logger.warning("there is no N-best result; allow shorter ones with minlenratio")
        return Decoding(results, state.statistics)

    def _result(self, ended: EndedHypothesis, prompt: list[int], scorers: list[str]) -> Result:
        scores = {name: torch.tensor(part) for name, part in zip(scorers, ended.parts, strict=True)}
        tokens, score = torch.tensor([*prompt, *ended.tokens]), torch.tensor(ended.score)
        ids = [token for token in ended.tokens[:-1] if token not in self.hidden_ids]
        pieces = self.converter.ids2tokens(ids)
        text = None if self.tokenizer is None else self.tokenizer.tokens2text(pieces)
        return text, pieces, ids, Hypothesis(tokens, score, scores)
