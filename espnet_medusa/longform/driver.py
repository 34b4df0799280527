"""Long recordings to segments: several run at once, their windows are decoded together.

The algorithm is that of openai-whisper's ``transcribe`` (Radford et al., arXiv 2212.04356, 4.5).
Windows of one recording follow one another; those of several go through the decoder as a batch,
each with its own prompt and at its own pace.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from espnet_medusa.longform.fallback import WindowDecoding, has_failed
from espnet_medusa.longform.history import History
from espnet_medusa.longform.moving_window import Align, MovingWindow
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.segment import Segment
from espnet_medusa.longform.window import FRAMES_PER_S, Clock, Window
from espnet_medusa.longform.word_times import TimedWord
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.whisper.transcript_text import TranscriptText


class WindowDecoder(Protocol):
    """A model that decodes windows.

    Attributes:
        window_frames: Frames of 10 ms that it hears at once.
        prompt_tokens: Most tokens of the text before a window.
        clock: What its timestamps mean.
        text: Its tokens.
    """

    window_frames: int
    prompt_tokens: int
    clock: Clock
    text: TranscriptText

    def features(self, samples: np.ndarray) -> Any:
        """Of a recording (samples,), with ``frames`` of 10 ms."""

    def encode(self, windows: Sequence[tuple[Any, Window]]) -> Any:
        """Of U windows, each with its recording's features."""

    def choose_languages(
        self, windows: Sequence[tuple[Any, Window]], languages: Sequence[str | None]
    ) -> list[str | None]:
        """U codes, detected in windows where that is asked for."""

    def decode(
        self,
        encoded: Any,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        languages: Sequence[str | None],
        temperature: float,
    ) -> list[tuple[WindowDecoding, DecodingStatistics]]:
        """Some rows of what was encoded, each with the text before it and its language."""

    def align(
        self, encoded: Any, row: int, frames: int, language: str | None, tokens: Sequence[int]
    ) -> list[TimedWord]:
        """Words of a row's text tokens, which are said within so many frames of 10 ms."""


@dataclass(frozen=True)
class LongRecording:
    """What is to be transcribed.

    Attributes:
        key: Tells it from others.
        samples: (samples,) in [-1, 1], at the model's rate.
        language: Code, or None: the model's own or detected.
    """

    key: Any
    samples: np.ndarray
    language: str | None = None


@dataclass
class RunningRecording:
    """A recording and what was found of it.

    Attributes:
        key: As given.
        features: Of the whole of it.
        window: Its way.
        language: Code; None with models of English alone.
        segments: So far.
        statistics: Of all windows.
        score: Log-probability of the windows that say something, timestamps and ends included.
        error: Why it ended early; None: it did not.
    """

    key: Any
    features: Any
    window: MovingWindow
    language: str | None = None
    segments: list[Segment] = field(default_factory=list)
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)
    score: float = 0.0
    error: Exception | None = None

    @property
    def text(self) -> str:
        """Of all segments."""
        return self.window.text.decode(self.window.history.written)

    @property
    def text_tokens(self) -> list[int]:
        """Of all segments, without timestamps."""
        return self.window.text.words_alone(self.window.history.written)


@dataclass(frozen=True)
class Progress:
    """A step of one recording.

    Attributes:
        recording: Which one; what it holds grows.
        segments: New ones.
        done: Whether there is nothing left of it.
    """

    recording: RunningRecording
    segments: list[Segment]
    done: bool


class LongForm:
    """Recordings of any length to segments.

    Args:
        decoder: Decodes windows.
        options: How windows follow each other.
        batch_size: Most recordings that run at once.
    """

    def __init__(self, decoder: WindowDecoder, options: LongFormOptions, batch_size: int = 1):
        self.decoder, self.options, self.batch_size = decoder, options, batch_size
        prompt = options.initial_prompt
        self.initial = () if prompt is None else tuple(decoder.text.encode(prompt))

    def __call__(self, recordings: Iterable[LongRecording]) -> Iterator[Progress]:
        """Steps as they are taken; recordings are read when there is room for them.

        What goes wrong with one stops nobody else: its last step has the ``error``.
        """
        waiting, running = iter(recordings), []
        while True:
            begun = []
            while len(running) + len(begun) < self.batch_size:
                recording = next(waiting, None)
                if recording is None:
                    break
                begun.append(recording)
            running += self._begin(begun)
            if not running:
                return
            yield from self._step(running)
            running = [one for one in running if one.error is None and one.window.next()]

    def _begin(self, recordings: Sequence[LongRecording]) -> list[RunningRecording]:
        """Recordings at their beginning, with their languages."""
        own, started, began = self.decoder, [], time.perf_counter()
        for recording in recordings:
            features = own.features(recording.samples)
            history = History(self.initial, own.prompt_tokens, self.options.carry_initial_prompt)
            window = MovingWindow(
                features.frames, own.window_frames, own.clock, own.text, self.options, history
            )
            one = RunningRecording(recording.key, features, window, recording.language)
            one.statistics.audio_seconds = features.frames / FRAMES_PER_S
            started.append(one)
        if started:
            # As openai-whisper: of the first 30 s, and of silence where there is less.
            first = Window(0, own.window_frames)
            windows = [(one.features, first) for one in started]
            languages = own.choose_languages(windows, [one.language for one in started])
            for one, language in zip(started, languages, strict=True):
                one.language = language
            share_seconds(started, began)
        return started

    def _step(self, running: Sequence[RunningRecording]) -> Iterator[Progress]:
        """A window of each recording."""
        started = time.perf_counter()
        windows = [one.window.next() for one in running]
        rows = [row for row, window in enumerate(windows) if window is not None]
        found = self._decode([running[row] for row in rows], [windows[row] for row in rows])
        decodings = dict(zip(rows, found, strict=True))
        taken = [
            [] if window is None else self._take(one, window, decodings[row])
            for row, (one, window) in enumerate(zip(running, windows, strict=True))
        ]
        share_seconds(running, started)
        for one, segments in zip(running, taken, strict=True):
            done = one.error is not None or one.window.next() is None
            if done:  # the text is made of all tokens anew
                one.statistics.words = len(one.text.split())
            yield Progress(one, segments, done)

    def _take(
        self,
        one: RunningRecording,
        window: Window,
        found: tuple[WindowDecoding, Align | None] | Exception,
    ) -> list[Segment]:
        """New segments of a recording, or why it ends here."""
        if isinstance(found, Exception):
            one.error = found
            return []
        try:
            segments = one.window.take(window, *found)
        except Exception as error:  # to find words may fail, too
            one.error = error
            return []
        one.segments += segments
        if any(segment.tokens for segment in segments):
            one.score += found[0].log_probability
        return segments

    def _decode(
        self, running: Sequence[RunningRecording], windows: Sequence[Window]
    ) -> list[tuple[WindowDecoding, Align | None] | Exception]:
        """Windows together, and how each finds its words; one by one where that fails."""
        try:
            return self._decode_together(running, windows)
        except Exception as error:  # whatever it was, the others go on
            if len(running) == 1:
                return [error]
        pairs = zip(running, windows, strict=True)
        return [self._decode([one], [window])[0] for one, window in pairs]

    def _decode_together(
        self, running: Sequence[RunningRecording], windows: Sequence[Window]
    ) -> list[tuple[WindowDecoding, Align | None]]:
        """The first attempt of each window that has not failed, or else the last."""
        if not running:
            return []
        features = [one.features for one in running]
        encoded = self.decoder.encode([*zip(features, windows, strict=True)])
        decodings: list[WindowDecoding | None] = [None] * len(running)
        rows = [*range(len(running))]
        for temperature in self.options.temperatures:
            prompts = [running[row].window.history.prompt() for row in rows]
            languages = [running[row].language for row in rows]
            found = self.decoder.decode(encoded, rows, prompts, languages, temperature)
            for row, (decoding, statistics) in zip(rows, found, strict=True):
                decodings[row] = decoding
                running[row].statistics += statistics
            rows = [row for row in rows if has_failed(decodings[row], self.options)]
            if not rows:
                break
        aligned = [self._align(encoded, row, *pair)
                   for row, pair in enumerate(zip(running, windows, strict=True))]  # fmt: skip
        return [*zip(decodings, aligned, strict=True)]

    def _align(self, encoded: Any, row: int, one: RunningRecording, window: Window) -> Align | None:
        if not self.options.word_timestamps:
            return None
        return partial(self.decoder.align, encoded, row, window.frames, one.language)


def share_seconds(running: Sequence[RunningRecording], started: float) -> None:
    """Seconds since then, evenly among those present."""
    seconds = (time.perf_counter() - started) / len(running)
    for one in running:
        one.statistics.total_seconds += seconds
