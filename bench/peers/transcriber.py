"""What transcribes speech from samples to text, each with its own features and encoder."""

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from peers.contestant import BFLOAT16, FLOAT32, INT8, Setup
from peers.way import Way
from peers.whisper_subject import WhisperSubject


@dataclass(frozen=True)
class Transcribed:
    """One utterance.

    Attributes:
        text: As it is.
        encoder_seconds: Features and encoders.
        decoder_seconds: All else.
        calls: Decoder calls, of a transcriber that counts them.
        tokens: That they wrote.
    """

    text: str
    encoder_seconds: float
    decoder_seconds: float
    calls: int | None = None
    tokens: int | None = None

    @property
    def seconds(self) -> float:
        """Samples to text."""
        return self.encoder_seconds + self.decoder_seconds


class Stopwatch:
    """Adds up the seconds of functions."""

    def __init__(self):
        self.seconds = 0.0

    def timed(self, function: Callable) -> Callable:
        """The same function."""

        def call(*args, **options):
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds += time.perf_counter() - started

        return call


class Transcriber(ABC):
    """One program with one type of weights.

    Args:
        subject: The model in all forms.
        weights: Their type.
        setup: Where it runs.
    """

    def __init__(self, subject: WhisperSubject, weights: str, setup: Setup):
        self.subject = subject
        self.weights = weights
        self.setup = setup

    @abstractmethod
    def transcribe(self, way: Way, samples: np.ndarray) -> Transcribed:
        """One utterance (samples,), 16 kHz, float32."""


@dataclass(frozen=True)
class Entry:
    """A transcriber.

    Attributes:
        module: In this package; imported in its own process alone.
        weights: Types that it is compared with.
    """

    module: str
    weights: tuple[str, ...]

    def build(self, subject: WhisperSubject, weights: str, setup: Setup) -> Transcriber:
        """Load it."""
        module = importlib.import_module(f"peers.{self.module}")
        return module.build(subject, weights, setup)


OURS, FASTER_WHISPER = "ours", "faster-whisper"
TRANSCRIBERS = {
    "transformers": Entry("transcribe_hugging_face", (FLOAT32,)),
    "openai-whisper": Entry("transcribe_openai_whisper", (FLOAT32,)),
    FASTER_WHISPER: Entry("transcribe_faster_whisper", (FLOAT32, INT8)),
    OURS: Entry("transcribe_ours", (FLOAT32, BFLOAT16, INT8)),
}
