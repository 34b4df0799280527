"""Convert search states to ESPnet's n-best results, and log times for ESPnet's RTF script."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.state import EndedHypothesis, SearchState
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.inference.trace_text import TraceText
from espnet_medusa.networks.espnet_compat import Hypothesis

logger = logging.getLogger(__name__)

Speech = np.ndarray | torch.Tensor  # (samples,) in [-1, 1] at the model's rate, or features
Result = tuple[str | None, list[str], list[int], Hypothesis]


@dataclass(frozen=True)
class Decoding:
    # N-best list of text, tokens, token ids and hypothesis; empty if none ended.
    results: list[Result]
    statistics: DecodingStatistics  # seconds, decoder calls and drafts
    language: str | None = None  # code; None if unknown
    # Segments of long audio, with times; None: the utterance was decoded as a whole.
    segments: tuple[Segment, ...] | None = None
    intermediate: dict[int, list[str]] | None = None  # of intermediate CTC: layer to tokens
    trace: list[dict[str, Any]] | None = None  # passages (docs/see_a_decoding.md); None: no trace


@dataclass(frozen=True)
class TextWriter:
    converter: Any  # ESPnet's, ids to tokens
    tokenizer: Any  # ESPnet's, tokens to text; None: results have no text
    hidden_ids: frozenset[int]  # token ids that results leave out
    nbest: int  # maximum number of results per utterance
    symbols: Collection[int] = ()  # token ids that texts leave out, such as timestamps

    def write(self, state: SearchState, prompt: list[int], scorers: list[str]) -> Decoding:
        """Return the n-best results; ``scorers`` are the names of ``EndedHypothesis.parts``."""
        results = [self._result(ended, prompt, scorers) for ended in state.n_best[: self.nbest]]
        if results:
            state.statistics.words = count_words(results[0][0])
        else:
            logger.warning("no hypothesis ended; allow shorter ones with a smaller minlenratio")
        trace = TraceText(self.converter, self.tokenizer).passages(state)
        return Decoding(results, state.statistics, trace=trace)

    def _result(self, ended: EndedHypothesis, prompt: list[int], scorers: list[str]) -> Result:
        ids = [token for token in ended.tokens[:-1] if token not in self.hidden_ids]
        pieces = self.converter.ids2tokens(ids)
        text = None
        if self.tokenizer is not None:
            spoken = [token for token in ids if token not in self.symbols]
            whole = len(spoken) == len(ids)
            text = self.tokenizer.tokens2text(
                pieces if whole else self.converter.ids2tokens(spoken)
            )
        return text, pieces, ids, espnet_hypothesis(ended, prompt, scorers)


def unpadded(
    speech: torch.Tensor | np.ndarray | Sequence[Speech],
    lengths: Sequence[int] | torch.Tensor | np.ndarray | None,
) -> Sequence[Speech]:
    """Return the utterances of a list, or of padded samples (U, N) with ``lengths`` (U,)."""
    if isinstance(speech, list | tuple):
        return speech
    if lengths is None or len(lengths) != len(speech):
        raise InputError(
            f"speech_lengths: {lengths}; allowed with padded speech: {len(speech)} lengths"
        )
    return [row[: int(length)] for row, length in zip(speech, lengths, strict=True)]


def open_tokenizer(tokenizer: Any) -> None:
    """Let ESPnet's tokenizer, or None, open its file now and not in the first of several threads.

    Sentencepiece's would be found empty by a second thread.
    """
    if tokenizer is not None:
        tokenizer.tokens2text([])


def count_words(text: str | None) -> int:
    """Return the number of words; 0 without a text."""
    return 0 if text is None else len(text.split())


def espnet_hypothesis(ended: EndedHypothesis, prompt: list[int], scorers: list[str]) -> Hypothesis:
    """Return ESPnet's hypothesis; arguments as for ``TextWriter.write``."""
    scores = {name: torch.tensor(part) for name, part in zip(scorers, ended.parts, strict=True)}
    return Hypothesis(torch.tensor([*prompt, *ended.tokens]), torch.tensor(ended.score), scores)


def log_decoded(samples: int, hypothesis: str, started: float, seconds: float) -> None:
    """Log the lines ``speech length`` and ``best hypo`` of a decoded utterance.

    ESPnet's ``calculate_rtf.py`` pairs these lines and adds up the times between them. A batch
    decodes utterances in parallel. Each gets an equal share of the batch's time, and the shares
    follow each other. The two lines have the times at which the share begins (``started``, seconds
    since the epoch as of ``time.time``) and ends.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    begins, ends = f"speech length: {samples}", f"best hypo: {hypothesis}"
    for created, message in ((started, begins), (started + seconds, ends)):
        record = logger.makeRecord(logger.name, logging.INFO, __file__, 0, message, (), None)
        record.created, record.msecs = created, int(created % 1 * 1000)
        logger.handle(record)
