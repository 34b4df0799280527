"""Recordings on their way to segments: whole, or in passages that do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from espnet_medusa.longform.moving_window import MovingWindow
from espnet_medusa.longform.segment import Segment
from espnet_medusa.longform.window import FRAMES_PER_S, Window
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.whisper.log_mel import HOP_SAMPLES


@dataclass(frozen=True)
class LongRecording:
    """What is to be transcribed.

    Attributes:
        key: Tells it from others.
        samples: (samples,) in [-1, 1], at the model's rate.
        language: Code, or None: the model's own or detected.
        name: How messages call it.
    """

    key: Any
    samples: np.ndarray
    language: str | None = None
    name: str = "audio"

    @property
    def frames(self) -> int:
        """Of 10 ms, as features have them."""
        return len(self.samples) // HOP_SAMPLES

    @property
    def duration_s(self) -> float:
        """In whole frames."""
        return self.frames / FRAMES_PER_S


@dataclass
class Passage:
    """A part of a recording whose windows follow one another.

    Attributes:
        recording: Its own; None: which is done.
        window: Its way.
        last_frame: Where nothing more of it is worth a window, in frames of 10 ms.
        segments: So far.
        reported: How many of them steps have told.
    """

    recording: RunningRecording | None = field(repr=False, compare=False)
    window: MovingWindow
    last_frame: int
    segments: list[Segment] = field(default_factory=list)
    reported: int = 0

    def next(self) -> Window | None:
        """Its next window; None: there is none."""
        if self.recording is None or self.recording.error is not None:
            return None
        window = self.window.next()
        return window if window is not None and window.seek < self.last_frame else None

    @property
    def text(self) -> str:
        """Of all segments."""
        return self.window.text.decode(self.window.history.written)

    @property
    def text_tokens(self) -> list[int]:
        """Of all segments, without timestamps."""
        return self.window.text.words_alone(self.window.history.written)


@dataclass
class RunningRecording:
    """A recording and what was found of it.

    Attributes:
        key: As given.
        features: Of the whole of it; None where nothing is decoded, and behind the last step.
        duration_s: Of the whole of it.
        language: Code; None with models of English alone.
        passages: In their order.
        statistics: Of all windows.
        score: Log-probability of the windows that say something, timestamps and ends included.
        error: Why it ended early; None: it did not.
    """

    key: Any
    features: Any
    duration_s: float
    language: str | None = None
    passages: list[Passage] = field(default_factory=list)
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    score: float = 0.0
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.statistics.audio_seconds = self.duration_s

    @classmethod
    def of(cls, recording: LongRecording) -> RunningRecording:
        """At its beginning, without features."""
        return cls(recording.key, None, recording.duration_s, recording.language)

    @property
    def text(self) -> str:
        """Of all segments."""
        return "".join(passage.text for passage in self._in_order())

    @property
    def text_tokens(self) -> list[int]:
        """Of all segments, without timestamps."""
        return [token for passage in self._in_order() for token in passage.text_tokens]

    @property
    def segments(self) -> list[Segment]:
        """So far, up to the first passage that is not done."""
        return [segment for passage in self._in_order() for segment in passage.segments]

    @property
    def done(self) -> bool:
        """Whether there is nothing left of it."""
        return self._running() is None

    @property
    def done_s(self) -> float:
        """Seconds of it that are behind its windows."""
        running = self._running()
        return self.duration_s if running is None else running.window.done_s

    def step(self) -> LongFormStep:
        """What is new since it was last asked for."""
        new, done = [], self.done
        for passage in self._in_order():
            new += passage.segments[passage.reported :]
            passage.reported = len(passage.segments)
        if done:
            self.statistics.words = len(self.text.split())  # made of all tokens anew
            self.features = None
            for passage in self.passages:  # or hours would wait until garbage is collected
                passage.recording = None
        return LongFormStep(self, new, done)

    def _running(self) -> Passage | None:
        return next((one for one in self.passages if one.next() is not None), None)

    def _in_order(self) -> Iterator[Passage]:
        running = self._running()
        for passage in self.passages:
            yield passage
            if passage is running:
                return


@dataclass(frozen=True)
class LongFormStep:
    """A step of one recording.

    Attributes:
        recording: Which one; what it holds grows.
        segments: New ones.
        done: Whether there is nothing left of it.
    """

    recording: RunningRecording
    segments: list[Segment]
    done: bool


RunLongForm = Callable[[Iterable[LongRecording]], Iterator[LongFormStep]]
