"""ESPnet's speech translation with beam search that decodes several tokens per decoder call."""

import inspect
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from espnet2.bin.st_inference import Speech2Text as ESPnetSpeech2Text

from espnet_medusa.errors import InputError
from espnet_medusa.inference.audio_batch import audio_limits
from espnet_medusa.inference.choose_search import full_scorers
from espnet_medusa.inference.decode_options import split_options
from espnet_medusa.inference.decoding import Decoding
from espnet_medusa.inference.espnet_search import SearchInESPnet, search_like
from espnet_medusa.inference.experiment import language_model_errors
from espnet_medusa.search.options import SearchOptions
from espnet_medusa.search.statistics import DecodingStatistics

ESPNET_OPTIONS = inspect.signature(ESPnetSpeech2Text.__init__).parameters


class STSpeech2Text(ESPnetSpeech2Text):
    """Audio in, n-best list out; same call and return values as ESPnet's.

    A call takes (samples,) in [-1, 1] at the model's sample rate. It returns text, tokens, token
    ids and hypothesis of each translation.

    Args:
        st_train_config: The experiment's ``config.yaml``.
        st_model_file: The weights.
        options: ESPnet's other arguments and the fields of ``SearchOptions``.

    Attributes:
        search: Our beam search; None: ESPnet's own search decodes.

    Raises:
        InputError: An option, the model or their combination is not usable.
    """

    whisper = None  # no Whisper prompts: ESPnet sets the prompt

    def __init__(
        self,
        st_train_config: Path | str | None = None,
        st_model_file: Path | str | None = None,
        **options: Any,
    ):
        self.options, batch_size = split_options(options, ESPNET_OPTIONS, SearchOptions, "st")
        if batch_size > 1:
            raise InputError(f"batch_size: {batch_size}; allowed with st: 1")
        with language_model_errors(options, st_model_file):
            super().__init__(st_train_config, st_model_file, **options)
        espnet, network = self.beam_search, self.st_model
        parts = espnet, network.decoder, getattr(network, "st_ctc", None), self.options, self.nbest
        self.search = search_like(*parts, full_scorers(espnet))
        if self.search is not None:
            self.beam_search = SearchInESPnet(espnet, self.search)
        self.audio = audio_limits(network.encoder, self.st_train_args)

    def decode(
        self, speeches: Sequence[np.ndarray | torch.Tensor], languages: Sequence[str | None] = ()
    ) -> list[Decoding]:
        """Decode utterances, each (samples,) in [-1, 1], one after the other.

        ``languages`` is not used: a model translates from one language.
        """
        decodings = []
        for speech in speeches:
            started = time.perf_counter()
            results = self(speech)
            counted = self.search is not None  # by the search
            statistics = self.beam_search.statistics if counted else DecodingStatistics()
            statistics.audio_seconds = len(speech) / self.audio.sample_rate_hz
            statistics.total_seconds = time.perf_counter() - started
            # ESPnet's tuple also has the transcripts of a model with two decoders.
            nbest = results[0] if isinstance(results, tuple) else results
            decodings.append(Decoding(nbest, statistics))
        return decodings
