"""ESPnet's speech translation with beam search that decodes several tokens per decoder call."""

import inspect
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from espnet2.bin.st_inference import Speech2Text as ESPnetSpeech2Text

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.threads import lock_of
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.audio_batch import audio_limits
from espnet_medusa.inference.choose_search import full_scorers
from espnet_medusa.inference.decode_options import check_espnet_decodes, split_options
from espnet_medusa.inference.decoding import (
    Decoding,
    Speech,
    TextWriter,
    count_words,
    open_tokenizer,
)
from espnet_medusa.inference.espnet_search import SearchInESPnet, search_like
from espnet_medusa.inference.experiment import check_language_model, language_model_errors
from espnet_medusa.inference.smaller_batches import run_list

BLANK = 0  # ESPnet leaves it out of translations
ESPNET_OPTIONS = inspect.signature(ESPnetSpeech2Text.__init__).parameters


class STSpeech2Text(ESPnetSpeech2Text):
    """Audio in, n-best list out; same call and return values as ESPnet's.

    A call takes (samples,) in [-1, 1] at the model's sample rate. It returns text, tokens, token
    ids and hypothesis of each translation.

    ``options`` are ESPnet's other arguments and the fields of ``SearchOptions``. A ``batch_size``
    above 1 requires that ``decode`` can decode utterances together. Raise InputError if an option,
    the model or their combination is not usable.
    """

    def __init__(
        self,
        st_train_config: Path | str | None = None,
        st_model_file: Path | str | None = None,
        **options: Any,
    ):
        self.options, batch_size = split_options(options, ESPNET_OPTIONS, SearchOptions, "st")
        with language_model_errors(options, st_model_file):
            super().__init__(st_train_config, st_model_file, **options)
        check_language_model(options, self.st_model.token_list)
        open_tokenizer(self.tokenizer)
        espnet, network = self.beam_search, self.st_model
        parts = espnet, network.decoder, getattr(network, "st_ctc", None), self.options, self.nbest
        self.search = search_like(*parts, full_scorers(espnet))  # None: ESPnet's search decodes
        if self.search is None:
            check_espnet_decodes(self.options, batch_size, network.decoder)
        else:
            self.beam_search = SearchInESPnet(espnet, self.search)
        # Whether ``decode`` decodes utterances together. ESPnet's call is needed for a second
        # decoder, greedy CTC and longer prompts.
        self.in_batches = (
            self.search is not None
            and not (network.use_multidecoder or self.ctc_greedy)
            and len(self.beam_search.prompt) == 1
        )
        if batch_size > 1 and not self.in_batches:
            raise InputError(f"batch_size: {batch_size}; this model or an option allows only 1")
        self.writer = TextWriter(self.converter, self.tokenizer, frozenset({BLANK}), self.nbest)
        self.audio = audio_limits(network.encoder, self.st_train_args)

    @torch.no_grad()
    def decode(
        self, speeches: Sequence[Speech], languages: Sequence[str | None] = ()
    ) -> list[Decoding]:
        """Decode utterances, each (samples,) in [-1, 1], together if the model allows it.

        ``languages`` is not used: a model translates from one language.
        """
        if not self.in_batches or not len(speeches):
            return [self._decode_alone(speech) for speech in speeches]
        started, prompts = time.perf_counter(), [self.beam_search.prompt] * len(speeches)
        speeches = [*map(self.audio.read, speeches)]
        encoder_outs = [self._encode(speech) for speech in speeches]
        limits = LengthLimits(self.maxlenratio, self.minlenratio, traced=self.options.trace)
        states = self.beam_search.decode(encoder_outs, prompts, limits)
        names = self.search.strategy.scoring.names
        decodings = [
            self.writer.write(state, prompt, names)
            for state, prompt in zip(states, prompts, strict=True)
        ]
        seconds = (time.perf_counter() - started) / len(speeches)
        for speech, decoding in zip(speeches, decodings, strict=True):
            self._time(decoding.statistics, speech, seconds)
        return decodings

    def __call__(self, speech: Speech | Sequence[Speech]) -> Any:
        """Return ESPnet's results for (samples,) in [-1, 1] at the model's sample rate.

        For a list of utterances, return a list of n-best lists; errors as ``run_list``.
        """
        if isinstance(speech, list | tuple):
            return [decoding.results for decoding in run_list(self.decode, speech)]
        return super().__call__(self.audio.read(speech))

    def _encode(self, speech: torch.Tensor) -> torch.Tensor:
        """Return the encoder output (S, D) of (samples,)."""
        speech = speech.to(self.device, getattr(torch, self.dtype))
        lengths = torch.tensor([len(speech)], device=self.device)
        with lock_of(self.st_model):
            return self.st_model.encode(speech[None], lengths, return_int_enc=True)[0][0]

    def _decode_alone(self, speech: Speech) -> Decoding:
        speech = self.audio.read(speech)
        if self.search is not None:  # ctc_greedy does not call it
            self.beam_search.statistics = DecodingStatistics()
        with lock_of(self.st_model):
            started = time.perf_counter()
            results = self(speech)
        statistics = DecodingStatistics() if self.search is None else self.beam_search.statistics
        self._time(statistics, speech, time.perf_counter() - started)
        # ESPnet's tuple also has the transcripts of a model with two decoders.
        nbest = results[0] if isinstance(results, tuple) else results
        statistics.words = count_words(nbest[0][0] if nbest else None)
        return Decoding(nbest, statistics)

    def _time(self, statistics: DecodingStatistics, speech: Sequence, seconds: float) -> None:
        statistics.audio_seconds = len(speech) / self.audio.sample_rate_hz
        statistics.total_seconds = seconds
