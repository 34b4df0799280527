"""The decoding state of recordings; a recording has one or several independent passages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from espnet_medusa.data.audio.voice_activity import SpeechActivity
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.longform.draft_text import DraftText, WindowDrafts
from espnet_medusa.inference.longform.moving_window import MovingWindow
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.inference.longform.window import FRAMES_PER_S, Window
from espnet_medusa.networks.whisper.log_mel import HOP_SAMPLES


@dataclass(frozen=True)
class LongRecording:
    key: Any  # identifies it
    samples: np.ndarray  # (samples,) in [-1, 1], at the model's rate
    language: str | None = None  # code; None: that of the decode options
    name: str = "audio"  # for messages
    draft_text: DraftText | None = None  # of the whole recording; None: unknown

    @property
    def frames(self) -> int:
        """Number of feature frames of 10 ms."""
        return len(self.samples) // HOP_SAMPLES

    @property
    def duration_s(self) -> float:
        """Duration without an incomplete last frame."""
        return self.frames / FRAMES_PER_S


class Row(NamedTuple):
    """A window of a batch."""

    index: int  # in the batch
    prompt: Sequence[int]  # text tokens before the window
    language: str | None  # code; None for English-only models
    draft: Sequence[int] | None = None  # tokens that draft; None: no text
    # Text tokens at the start of the window that are known; all rows of a call have some, or none.
    prefix: Sequence[int] = ()


@dataclass
class Passage:
    """A part of a recording in which each window depends on the previous one."""

    # The recording; None after its last step.
    recording: RunningRecording | None = field(repr=False, compare=False)
    window: MovingWindow  # moves through the passage
    last_frame: int  # each window of the passage starts before this frame of 10 ms
    segments: list[Segment] = field(default_factory=list)  # so far
    reported: int = 0  # number of segments that steps have returned
    language: str | None = None  # of the last window, with ``multilingual``; None: the recording's

    def next(self) -> Window | None:
        """Return the next window, or None at the end."""
        if self.recording is None or self.recording.error is not None:
            return None
        window = self.window.next()
        return window if window is not None and window.seek < self.last_frame else None

    def row(self, index: int) -> Row:
        """Describe the passage's window for a decoder."""
        language = self.language or self.recording.language
        return Row(index, self.window.history.prompt(), language, self._draft())

    def _draft(self) -> list[int] | None:
        """Return the tokens that draft the next window; None: its part of the text is unknown."""
        recording, window = self.recording, self.window.next()
        drafts = recording.drafts
        # The place in a plain text is known if the text before the window is decoded.
        if drafts is None or window is None or (drafts.is_plain and not recording.is_next(self)):
            return None
        return drafts.part(window, recording.timestamps)

    def change_language(self, language: str) -> None:
        """Set the language of the next window; text in another one is not part of its prompt."""
        history = self.window.history
        if history.written and language != (self.language or self.recording.language):
            history.add((), forget=True)
        self.language = language


@dataclass
class RunningRecording:
    key: Any  # that of the recording
    duration_s: float  # of the whole recording
    language: str | None = None  # code; None: that of the decode options
    multilingual: bool = False  # whether each window's language is detected
    language_windows: list[Window] = field(default_factory=list)  # where to detect the language
    # Of the whole recording; None if nothing is decoded, and after the last step.
    features: Any = None
    timestamps: bool = True  # whether windows are decoded with timestamps
    speech: SpeechActivity | None = None  # where there is speech; None: no option needs it
    passages: list[Passage] = field(default_factory=list)  # in order
    statistics: DecodingStatistics = field(default_factory=DecodingStatistics)  # of all windows
    score: float = 0.0  # log-probability of windows with text, including timestamps and end symbols
    error: Exception | None = None  # the exception that ended it early, or None
    traces: list[dict[str, Any]] = field(default_factory=list)  # of windows, if they are traced
    drafts: WindowDrafts | None = None  # None: no text drafts

    def __post_init__(self) -> None:
        self.statistics.audio_seconds = self.duration_s

    def with_pauses(self, window: Window) -> Window:
        """Add pauses to a window; unchanged if voice activity detection did not run."""
        if self.speech is None:
            return window
        pauses = self.speech.pauses(window.start_s, window.end_s)
        frames = tuple((round(FRAMES_PER_S * a), round(FRAMES_PER_S * b)) for a, b in pauses)
        return replace(window, pauses=frames)

    @property
    def text(self) -> str:
        windows = (passage.window for passage in self._in_order())
        return "".join(window.text.decode(window.history.written) for window in windows)

    @property
    def text_tokens(self) -> list[int]:
        """Tokens of all segments, without timestamps."""
        windows = (passage.window for passage in self._in_order())
        return [token for w in windows for token in w.text.text_tokens(w.history.written)]

    @property
    def segments(self) -> list[Segment]:
        """Segments of all passages up to and including the first one that is not done."""
        return [segment for passage in self._in_order() for segment in passage.segments]

    @property
    def trace(self) -> list[dict[str, Any]] | None:
        """The traces of windows, in order; None: they were not traced."""
        return sorted(self.traces, key=lambda window: window["start_s"]) or None

    @property
    def done(self) -> bool:
        """Whether all windows are decoded, or an exception ended it."""
        return self._running() is None

    @property
    def done_s(self) -> float:
        """Seconds of the recording before the next window of the first unfinished passage."""
        running = self._running()
        return self.duration_s if running is None else running.window.done_s

    def step(self) -> LongFormStep:
        """Return the segments since the last call."""
        new, done = [], self.done
        for passage in self._in_order():
            new += passage.segments[passage.reported :]
            passage.reported = len(passage.segments)
        if done:
            self.statistics.words = len(self.text.split())
            self.features = None
            for passage in self.passages:  # no reference cycles: frees the features now
                passage.recording = None
        return LongFormStep(self, new, done)

    def is_next(self, passage: Passage) -> bool:
        """Return whether all passages before this one are decoded."""
        return self._running() is passage

    def _running(self) -> Passage | None:
        return next((passage for passage in self.passages if passage.next() is not None), None)

    def _in_order(self) -> Iterator[Passage]:
        running = self._running()
        for passage in self.passages:
            yield passage
            if passage is running:
                return


@dataclass(frozen=True)
class LongFormStep:
    recording: RunningRecording  # later steps change it
    segments: list[Segment]  # new segments
    done: bool  # whether this is the last step


RunLongForm = Callable[[Iterable[LongRecording]], Iterator[LongFormStep]]
