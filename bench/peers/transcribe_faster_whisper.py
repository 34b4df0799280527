"""faster-whisper's ``WhisperModel.transcribe``, as its users call it, without timestamps."""

import time

import numpy as np
from faster_whisper import BatchedInferencePipeline, WhisperModel
from faster_whisper.feature_extractor import FeatureExtractor

from peers.contestant import Setup
from peers.transcriber import LongTask, LongTranscribed, Piece, Stopwatch, Transcribed, Transcriber
from peers.way import Way
from peers.whisper_subject import WhisperSubject


class FasterWhisper(Transcriber):
    """Greedy and beam search at temperature 0; its own features and encoder are timed within."""

    def __init__(self, subject: WhisperSubject, weights: str, setup: Setup):
        super().__init__(subject, weights, setup)
        self.stopwatch = Stopwatch()
        # In the classes: nothing else in this process has any.
        FeatureExtractor.__call__ = self.stopwatch.timed(FeatureExtractor.__call__)
        WhisperModel.encode = self.stopwatch.timed(WhisperModel.encode)
        self.model = WhisperModel(
            str(subject.ctranslate2), "cpu", compute_type=weights, cpu_threads=setup.threads
        )

    def transcribe(self, way: Way, samples: np.ndarray) -> Transcribed:
        self.stopwatch.seconds, started = 0.0, time.perf_counter()
        segments, _ = self.model.transcribe(
            samples,
            language=self.subject.language,
            beam_size=way.beam_size,
            temperature=0.0,
            without_timestamps=True,
            condition_on_previous_text=False,
        )
        text = " ".join(segment.text for segment in segments)
        seconds, encoder = time.perf_counter() - started, self.stopwatch.seconds
        return Transcribed(text, encoder, seconds - encoder)

    def transcribe_long(self, way: Way, samples: np.ndarray, task: LongTask) -> LongTranscribed:
        """Its own defaults, but for the temperatures."""
        self.stopwatch.seconds, started = 0.0, time.perf_counter()
        batched = {"batch_size": way.batch_size} if way.batch_size > 1 else {}
        program = BatchedInferencePipeline(self.model) if batched else self.model
        segments, _ = program.transcribe(
            samples,
            language=self.subject.language,
            beam_size=way.beam_size,
            **({} if task.fallback else {"temperature": 0.0}),
            word_timestamps=task.words,
            **batched,
        )
        pieces = [
            Piece(
                one.start, one.end, one.text, one.avg_logprob,
                [(word.word, word.start, word.end) for word in one.words or ()],
                one.temperature or 0.0,
            )
            for one in segments
        ]  # fmt: skip
        seconds, encoder = time.perf_counter() - started, self.stopwatch.seconds
        return LongTranscribed(pieces, encoder, seconds - encoder)


build = FasterWhisper
