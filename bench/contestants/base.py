"""The interface of contestants, their results, and the table of all contestants."""

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from contestants.ways import BEAM5, BFLOAT16, FLOAT16, FLOAT32, GREEDY, INT8, OURS, Way

MEMORIES, SPEECH, RECORDINGS, PLAN = "memories", "speech", "recordings", "plan"  # subject kinds
LENGTHS = "lengths"  # as ``SPEECH``, on clips of several lengths
CONDITIONS = "conditions"  # programs at their defaults, on clips of ``conditions.py``
FASTER_WHISPER, OPENAI_WHISPER = "faster-whisper", "openai-whisper"
OPENVINO, WHISPER_CPP = "OpenVINO GenAI", "whisper.cpp"
Memories = Sequence[np.ndarray]  # encoder outputs (S, D), float32


@dataclass(frozen=True)
class Setup:
    """Device, threads and options of a contestant."""

    device: str = "cpu"  # cpu or cuda
    threads: int = 2  # CPU threads
    words: bool = False  # whether word times of long recordings are computed
    # Whether failed windows of long recordings are decoded again at higher temperatures, by the
    # defaults of each program.
    fallback: bool = False


@dataclass(frozen=True)
class Segment:
    """A segment of a recording."""

    start_s: float  # in the recording, like ``end_s``
    end_s: float
    text: str  # as the program wrote it
    average_log_probability: float  # mean over the tokens of its window
    # Each word with start and end in s, if word times were computed.
    words: list[tuple[str, float, float]] = field(default_factory=list)
    temperature: float = 0.0  # at which its window was decoded


@dataclass(frozen=True)
class Result:
    """The output for one input."""

    text: str = ""  # best text, for contestants that write text
    # Best tokens without start and end symbol, for contestants that decode memories.
    tokens: list[int] = field(default_factory=list)
    # Tokens and score of each hypothesis.
    nbest: list[tuple[list[int], float]] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)  # segments of a recording
    # ``DecodingStatistics`` as a dict, for contestants that count.
    counts: dict[str, Any] | None = None

    @classmethod
    def of_segments(cls, segments: list[Segment], counts: dict | None = None) -> "Result":
        """Build the result of a recording."""
        text = " ".join(segment.text.strip() for segment in segments)
        return cls(text, segments=segments, counts=counts)

    @classmethod
    def read(cls, fields: dict) -> "Result":
        """Read ``dataclasses.asdict`` after a round trip through JSON."""
        segments = [
            Segment(**segment | {"words": [(*word,) for word in segment["words"]]})
            for segment in fields["segments"]
        ]
        nbest = [(tokens, score) for tokens, score in fields["nbest"]]
        return cls(**fields | {"segments": segments, "nbest": nbest})


@dataclass(frozen=True)
class Timed:
    """Results of a batch with its times."""

    results: list[Result]  # one for each input
    encoder_seconds: float  # features and encoders; 0 where inputs are memories
    decoder_seconds: float  # everything else

    @property
    def seconds(self) -> float:
        """Input to output."""
        return self.encoder_seconds + self.decoder_seconds

    @classmethod
    def read(cls, fields: dict) -> "Timed":
        """Read ``dataclasses.asdict`` after a round trip through JSON."""
        return cls(**fields | {"results": [*map(Result.read, fields["results"])]})


class Contestant(ABC):
    """One program or decoder with one type of weights."""

    def __init__(self, subject, weights: str, setup: Setup):
        self.subject, self.weights, self.setup = subject, weights, setup
        self.load()

    @abstractmethod
    def load(self) -> None:
        """Load the model."""


class MemoryDecoder(Contestant):
    """Decodes encoder outputs."""

    @abstractmethod
    def decode(self, way: Way, names: Sequence[str], encoder_outs: Memories) -> list[Result]:
        """Decode encoder outputs together."""


class Transcriber(Contestant):
    """Transcribes samples with its own features and encoder."""

    @abstractmethod
    def transcribe(self, way: Way, samples: np.ndarray) -> Timed:
        """Transcribe one utterance (samples,), 16 kHz, float32."""

    def transcribe_long(self, way: Way, samples: np.ndarray) -> Timed:
        """Transcribe a recording with timestamps, ``way.batch_size`` windows together."""
        raise NotImplementedError(f"{type(self).__name__}: transcribes single windows only")


class Stopwatch:
    """Adds up the seconds of functions."""

    def __init__(self):
        self.seconds = 0.0

    def timed(self, function: Callable) -> Callable:
        """Return the function; its calls also add to ``seconds``."""

        def call(*args, **options):
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.seconds += time.perf_counter() - started

        return call


def pad_encoder_outs(encoder_outs: Memories) -> np.ndarray:
    """Pad U memories (S, D) with zeros to (U, S, D)."""
    longest = max(map(len, encoder_outs))
    padded = np.zeros((len(encoder_outs), longest, encoder_outs[0].shape[1]), np.float32)
    for row, encoder_out in zip(padded, encoder_outs, strict=True):
        row[: len(encoder_out)] = encoder_out
    return padded


def until_end(tokens: Sequence[int], eos: int) -> list[int]:
    """Return the tokens before the end symbol."""
    tokens = [*tokens]
    return tokens[: tokens.index(eos)] if eos in tokens else tokens


@dataclass(frozen=True)
class Entry:
    """The class of a contestant, and what it supports."""

    path: str  # module and class in this package, imported only in the contestant's process
    weights: tuple[str, ...]  # types of weights on a CPU
    searches: tuple[str, ...] = (GREEDY, BEAM5)  # searches that it has
    # Searches that decode several inputs (of long recordings: windows) together.
    batched: tuple[str, ...] = ()
    long: bool = False  # whether it transcribes long recordings

    def build(self, subject, weights: str, setup: Setup) -> Contestant:
        """Load the contestant."""
        module, name = self.path.split(".")
        kind = getattr(importlib.import_module(f"contestants.{module}"), name)
        return kind(subject, weights, setup)


BOTH = (GREEDY, BEAM5)
CONTESTANTS = {
    MEMORIES: {
        "transformers": Entry("hugging_face.MemoryHuggingFace", (FLOAT32, BFLOAT16), batched=BOTH),
        "transformers assisted": Entry(
            "hugging_face.Assisted", (FLOAT32, BFLOAT16), searches=(GREEDY,)
        ),
        "ctranslate2": Entry("faster_whisper.CTranslate2", (FLOAT32, INT8), batched=BOTH),
        "espnet uncached": Entry("espnet.ESPnetUncached", (FLOAT32,)),
        OURS: Entry("ours.MemoryOurs", (FLOAT32, BFLOAT16, INT8), batched=BOTH),
    },
    SPEECH: {
        "transformers": Entry("hugging_face.HuggingFace", (FLOAT32,)),
        OPENVINO: Entry("openvino.OpenVINO", (FLOAT32, INT8)),
        WHISPER_CPP: Entry("whisper_cpp.WhisperCpp", (FLOAT16,)),
        OPENAI_WHISPER: Entry("openai_whisper.OpenAIWhisper", (FLOAT32,), long=True),
        FASTER_WHISPER: Entry(
            "faster_whisper.FasterWhisper", (FLOAT32, INT8), batched=BOTH, long=True
        ),
        OURS: Entry("ours.Ours", (FLOAT32, BFLOAT16, INT8), batched=BOTH, long=True),
    },
}
CONTESTANTS[RECORDINGS] = {name: entry for name, entry in CONTESTANTS[SPEECH].items() if entry.long}
# The contestant and weights that the speedups of a table refer to.
REFERENCE = {
    MEMORIES: ("ctranslate2", INT8),
    SPEECH: (FASTER_WHISPER, INT8),
    LENGTHS: (FASTER_WHISPER, INT8),
    RECORDINGS: (FASTER_WHISPER, INT8),
}
