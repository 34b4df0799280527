"""What a search has found becomes text: ESPnet's n-best results."""

import logging
from dataclasses import dataclass
from typing import Any

import torch

from espnet_medusa.compat import Hypothesis
from espnet_medusa.longform.segment import Segment
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.search.walk import EndedHypothesis, Walk

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

    def write(self, walk: Walk, prompt: list[int], scorers: list[str]) -> Decoding:
        """Of one utterance.

        Args:
            walk: Of a search that is over.
            prompt: P tokens that it started from.
            scorers: Names of its scores' parts.
        """
        results = [self._result(ended, prompt, scorers) for ended in walk.n_best[: self.nbest]]
        if results:
            text = results[0][0]
            walk.statistics.words = 0 if text is None else len(text.split())
        else:
            logger.warning("there is no N-best result; allow shorter ones with minlenratio")
        return Decoding(results, walk.statistics)

    def _result(self, ended: EndedHypothesis, prompt: list[int], scorers: list[str]) -> Result:
        scores = {name: torch.tensor(part) for name, part in zip(scorers, ended.parts, strict=True)}
        tokens, score = torch.tensor([*prompt, *ended.tokens]), torch.tensor(ended.score)
        ids = [token for token in ended.tokens[:-1] if token not in self.hidden_ids]
        pieces = self.converter.ids2tokens(ids)
        text = None if self.tokenizer is None else self.tokenizer.tokens2text(pieces)
        return text, pieces, ids, Hypothesis(tokens, score, scores)
