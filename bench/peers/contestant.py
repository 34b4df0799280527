"""What a contestant is, and who there is."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from peers.subject import Subject
from peers.way import BEAM5, GREEDY, Way

FLOAT32, BFLOAT16, FLOAT16, INT8 = "float32", "bfloat16", "float16", "int8"


@dataclass(frozen=True)
class Setup:
    """Where a contestant runs.

    Attributes:
        device: cpu or cuda.
        threads: Of the CPU.
        acceptance: Tokens per call of the calls measured on trained heads, by search, for
            replayed drafts.
    """

    device: str = "cpu"
    threads: int = 2
    acceptance: dict[str, list[int]] | None = None


@dataclass(frozen=True)
class Decoded:
    """What decoding some inputs gave.

    Attributes:
        tokens: Of the best hypothesis of each, without start and end symbol.
        calls: Decoder calls, of a contestant that counts them.
        nodes: Tokens that they evaluated.
        tokens_per_call: How many calls wrote so many tokens (took so many steps), by number.
        excluded_seconds: Work of the measurement itself.
    """

    tokens: list[list[int]]
    calls: int | None = None
    nodes: int | None = None
    tokens_per_call: dict[int, int] | None = None
    excluded_seconds: float = 0.0


class Contestant(ABC):
    """Decodes memories.

    Args:
        subject: What it decodes.
        weights: Their type.
        setup: Where it runs.
    """

    def __init__(self, subject: Subject, weights: str, setup: Setup):
        self.subject = subject
        self.weights = weights
        self.setup = setup

    @abstractmethod
    def decode(self, way: Way, names: Sequence[str], memories: Sequence[np.ndarray]) -> Decoded:
        """Decode inputs together, in float32 memories (S, D); ends when tokens are known."""


@dataclass(frozen=True)
class Entry:
    """A contestant and what it can do.

    Attributes:
        module: In this package; imported in the contestant's process alone.
        weights: Types it is compared with on a CPU.
        searches: Those it has.
        batched: Of those, the ones that decode several inputs together.
        cuda_weights: Types on a GPU; empty: does not run there.
        drafts: Has ways with drafts.
    """

    module: str
    weights: tuple[str, ...]
    searches: tuple[str, ...] = (GREEDY, BEAM5)
    batched: tuple[str, ...] = ()
    cuda_weights: tuple[str, ...] = ()
    drafts: bool = False

    def build(self, subject: Subject, weights: str, setup: Setup) -> Contestant:
        """Load it."""
        module = importlib.import_module(f"peers.{self.module}")
        return module.build(subject, weights, setup)


CONTESTANTS = {
    "transformers": Entry(
        "hugging_face",
        (FLOAT32, BFLOAT16),
        batched=(GREEDY, BEAM5),
        cuda_weights=(FLOAT16, BFLOAT16),
    ),
    "transformers compiled": Entry("hugging_face_compiled", (), (GREEDY,), (), (BFLOAT16,)),
    "transformers assisted": Entry("hugging_face_assisted", (FLOAT32, BFLOAT16), (GREEDY,)),
    "ctranslate2": Entry("faster_whisper_engine", (FLOAT32, INT8), batched=(GREEDY, BEAM5)),
    "openai-whisper": Entry("openai_whisper", (FLOAT32,), batched=(GREEDY,)),
    "espnet uncached": Entry("espnet_uncached", (FLOAT32,)),
    "ours": Entry(
        *("ours", (FLOAT32, BFLOAT16, INT8), (GREEDY, BEAM5), (GREEDY, BEAM5)),
        (FLOAT16, BFLOAT16),
        drafts=True,
    ),
}
