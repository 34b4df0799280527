"""Ours: ``Speech2Text``, one for each search and drafter, over one encoder."""

import time
from pathlib import Path

import numpy as np
from shared_weights import SharedWeights

from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.runtime.process import keep_freed_memory
from peers.contestant import Setup
from peers.transcriber import LongTask, LongTranscribed, Piece, Transcribed, Transcriber
from peers.way import HEADS, MODEL, PLAIN, Way
from peers.whisper_subject import WhisperSubject

BEAM_DEPTH = 2  # of heads, which do not draft in beams by themselves: there it hardly pays


class Ours(Transcriber):
    """Greedy and beam search; a draft model's encoder counts as encoder."""

    def __init__(self, subject: WhisperSubject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        keep_freed_memory()  # as asr_inference does
        self.shared = SharedWeights()
        self.models: dict[tuple[str, str], Speech2Text] = {}
        self.long_models: dict[tuple[str, str], Speech2Text] = {}

    def model(self, way: Way) -> Speech2Text:
        """The search of a way, opened when it is first asked for."""
        key = way.search, way.drafts
        if key not in self.models:
            self.models[key] = self.shared.open(
                Path(self.subject.config), Path(self.subject.weights), self.options(way)
            )
        return self.models[key]

    def options(self, way: Way) -> dict[str, object]:
        """Of decoding; a beam ends as openai-whisper's and the others'."""
        beam = {"beam_size": way.beam_size, "patience": 1.0}
        search = {"search": "greedy"} if way.beam_size == 1 else beam
        drafts = {"draft_depth": 0} if way.drafts == PLAIN else {"drafter": way.drafts}
        if way.drafts == MODEL:
            drafts["draft_model"] = self.subject.draft_model
        if way.drafts == HEADS and way.beam_size > 1:
            drafts["draft_depth"] = BEAM_DEPTH
        options = {"ctc_weight": 0.0, "lm_weight": 0.0, "decoder_precision": self.weights}
        return options | search | drafts

    def long_model(self, way: Way) -> Speech2Text:
        """The same, with all weights that word times need."""
        key = way.search, way.drafts
        if key not in self.long_models:
            self.long_models[key] = Speech2Text(
                self.subject.config, self.subject.weights, **self.options(way)
            )
        return self.long_models[key]

    def transcribe(self, way: Way, samples: np.ndarray) -> Transcribed:
        model = self.model(way)
        started = time.perf_counter()
        results = model(samples)
        seconds = time.perf_counter() - started
        counts = model.statistics
        return Transcribed(
            (results[0][0] or "") if results else "",
            seconds - counts.decoder_seconds,
            counts.decoder_seconds,
            counts.decoder_calls,
            counts.tokens,
        )

    def transcribe_long(self, way: Way, samples: np.ndarray, task: LongTask) -> LongTranscribed:
        """openai-whisper's defaults, but for the temperatures; batches as faster-whisper's."""
        model = self.long_model(way)
        batched = {"vad_filter": True, "without_timestamps": True, "batch_size": way.batch_size}
        started = time.perf_counter()
        found = model.transcribe(
            samples,
            **({} if task.fallback else {"temperature_increment_on_fallback": None}),
            word_timestamps=task.words,
            **(batched if way.batch_size > 1 else {}),
        )
        pieces = [
            Piece(
                one.start_s, one.end_s, one.text, one.average_log_probability,
                [(word.text, word.start_s, word.end_s) for word in one.words],
                one.temperature,
            )
            for one in found
        ]  # fmt: skip
        seconds, counts = time.perf_counter() - started, model.statistics
        return LongTranscribed(
            pieces,
            seconds - counts.decoder_seconds,
            counts.decoder_seconds,
            counts.decoder_calls,
            counts.tokens,
        )


build = Ours
