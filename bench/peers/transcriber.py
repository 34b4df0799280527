"""What transcribes speech from samples to text, each with its own features and encoder."""

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from peers.contestant import BFLOAT16, FLOAT32, INT8, Setup
from peers.way import Way
from peers.whisper_subject import WhisperSubject


class Timed:
    """What was timed in two parts."""

    encoder_seconds: float
    decoder_seconds: float

    @property
    def seconds(self) -> float:
        """Samples to text."""
        return self.encoder_seconds + self.decoder_seconds


@dataclass(frozen=True)
class Transcribed(Timed):
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


@dataclass(frozen=True)
class Piece:
    """A segment of a recording.

    Attributes:
        start_s, end_s: In the recording.
        text: As it is.
        average_log_probability: Of its window's tokens.
        words: Each with start and end in s, where they are asked for.
        temperature: At which its window was decoded.
    """

    start_s: float
    end_s: float
    text: str
    average_log_probability: float
    words: list[tuple[str, float, float]] = field(default_factory=list)
    temperature: float = 0.0


@dataclass(frozen=True)
class LongTask:
    """What is asked of recordings.

    Attributes:
        words: When each word is said, too.
        fallback: Windows that fail are decoded again, hotter, by each program's defaults.
    """

    words: bool = False
    fallback: bool = False


@dataclass(frozen=True)
class LongTranscribed(Timed):
    """One recording of any length; fields as ``Transcribed``'s.

    Attributes:
        pieces: In order.
    """

    pieces: list[Piece]
    encoder_seconds: float
    decoder_seconds: float
    calls: int | None = None
    tokens: int | None = None

    @property
    def text(self) -> str:
        """Of all pieces."""
        return " ".join(piece.text.strip() for piece in self.pieces)

    @classmethod
    def read(cls, fields: dict) -> "LongTranscribed":
        """From ``dataclasses.asdict`` through JSON."""
        pieces = [
            Piece(**piece | {"words": [(*word,) for word in piece["words"]]})
            for piece in fields["pieces"]
        ]
        return cls(**fields | {"pieces": pieces})


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

    def transcribe_long(self, way: Way, samples: np.ndarray, task: LongTask) -> LongTranscribed:
        """A recording of any length, with timestamps, from temperature 0 on.

        Args:
            way: Above a batch size of 1 so many windows are decoded together.
            samples: (samples,), 16 kHz, float32.
            task: What is asked beside the text.
        """
        raise NotImplementedError(f"{type(self).__name__}: for audio within the window alone")


@dataclass(frozen=True)
class Entry:
    """A transcriber.

    Attributes:
        module: In this package; imported in its own process alone.
        weights: Types that it is compared with.
        long: How it goes through recordings of any length: ``SEQUENTIAL``, ``BATCHED``.
    """

    module: str
    weights: tuple[str, ...]
    long: tuple[str, ...] = ()

    def build(self, subject: WhisperSubject, weights: str, setup: Setup) -> Transcriber:
        """Load it."""
        module = importlib.import_module(f"peers.{self.module}")
        return module.build(subject, weights, setup)


OURS, FASTER_WHISPER, OPENAI_WHISPER = "ours", "faster-whisper", "openai-whisper"
SEQUENTIAL, BATCHED = "sequential", "batched"
TRANSCRIBERS = {
    "transformers": Entry("transcribe_hugging_face", (FLOAT32,)),
    OPENAI_WHISPER: Entry("transcribe_openai_whisper", (FLOAT32,), (SEQUENTIAL,)),
    FASTER_WHISPER: Entry("transcribe_faster_whisper", (FLOAT32, INT8), (SEQUENTIAL, BATCHED)),
    OURS: Entry("transcribe_ours", (FLOAT32, BFLOAT16, INT8), (SEQUENTIAL, BATCHED)),
}
