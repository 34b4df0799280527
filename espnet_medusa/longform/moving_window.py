"""One recording under way: which window is next, and what its decoding makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from espnet_medusa.longform.fallback import WindowDecoding, is_silence
from espnet_medusa.longform.hallucinations import Stretch, first_hallucination, leading_silence
from espnet_medusa.longform.history import History
from espnet_medusa.longform.options import ATTENTION, LongFormOptions
from espnet_medusa.longform.segment import Segment
from espnet_medusa.longform.window import FRAMES_PER_S, Clock, CutWindow, Window, cut_window
from espnet_medusa.longform.word_times import TimedWord, add_words
from espnet_medusa.whisper.transcript import TranscriptText

Align = Callable[[Sequence[int]], list[TimedWord]]

HOT = 0.5  # a text drawn above it is no prompt


@dataclass
class MovingWindow:
    """The window's way through a recording, as openai-whisper's ``transcribe`` moves it.

    Attributes:
        frames: Of the recording, 10 ms each.
        window_frames: Of what the model hears at once.
        clock: What timestamps mean.
        text: Tokens to text.
        options: How windows follow each other.
        history: What was written.
        seek: First frame of the next window.
        clips: Frames from and to which there is something left to do.
        last_speech_s: Where the last word ends.
    """

    frames: int
    window_frames: int
    clock: Clock
    text: TranscriptText
    options: LongFormOptions
    history: History
    seek: int = field(init=False)
    clips: list[tuple[int, int]] = field(init=False)
    last_speech_s: float = 0.0

    def __post_init__(self) -> None:
        self.clips = clips_in_frames(self.options.clip_timestamps, self.frames)
        self.seek = self.clips[0][0]

    @property
    def done_s(self) -> float:
        """Seconds of the recording that are behind it."""
        return min(self.seek, self.frames) / FRAMES_PER_S

    def next(self) -> Window | None:
        """The next window; None: there is none."""
        while self.clips:
            start, end = self.clips[0]
            self.seek = max(self.seek, start)
            if self.seek < end:
                rest = min(self.window_frames, self.frames - self.seek, end - self.seek)
                # A clip may end behind the recording.
                if rest > 0:
                    return Window(self.seek, rest)
            self.clips.pop(0)
            if self.clips:
                self.seek = self.clips[0][0]
        return None

    def take(
        self, window: Window, decoding: WindowDecoding, align: Align | None = None
    ) -> list[Segment]:
        """Segments of a window; moves on behind them.

        Args:
            window: As ``next`` gave it.
            decoding: Of it.
            align: Gives the words of the window's text tokens; None: none are asked for.
        """
        if is_silence(decoding, self.options):
            self.seek = window.seek + window.frames
            return []
        cut = cut_window(decoding.tokens, window, self.clock)
        self.seek = cut.seek
        segments = self.segments(window, cut, decoding)
        if align is not None:
            segments = self._add_words(window, cut, segments, align)
            self.seek = max(self.seek, window.seek + 1)  # whatever words say, it goes on
            if segments is None:
                return []
        return self._write(segments, decoding)

    def _add_words(
        self, window: Window, cut: CutWindow, segments: list[Segment], align: Align
    ) -> list[Segment] | None:
        """Segments with words, and the next window behind the last; None: all is to be left out."""
        counts = [len(self.text.words_alone(segment.tokens)) for segment in segments]
        tokens = [t for segment in segments for t in self.text.words_alone(segment.tokens)]
        marks = self.options.prepend_punctuations, self.options.append_punctuations
        known_s = window.start_s, self.last_speech_s
        # CTC hears blanks in a pause; attention has nowhere else to go.
        hold_pauses = self.options.word_times == ATTENTION
        segments = add_words(segments, counts, align(tokens), *known_s, *marks, hold_pauses)
        end_s, threshold_s = last_end(segments), self.options.hallucination_silence_threshold
        window_end_s = float((window.seek + self.window_frames) / FRAMES_PER_S)
        if not cut.ends_in_silence and end_s is not None and end_s > window.start_s:
            self.seek = round(end_s * FRAMES_PER_S)
            if threshold_s is not None and window_end_s - end_s <= threshold_s:
                self.seek = window.seek + window.frames
        if threshold_s is not None:
            stretch = Stretch(window, window_end_s, self.frames, self.last_speech_s)
            seek = leading_silence(segments, stretch, threshold_s)
            if seek is not None:
                self.seek = seek
                return None
            found = first_hallucination(segments, stretch, threshold_s)
            if found is not None:
                place, self.seek = found
                segments = segments[:place]
        end_s = last_end(segments)
        self.last_speech_s = self.last_speech_s if end_s is None else end_s
        return segments

    def segments(self, window: Window, cut: CutWindow, decoding: WindowDecoding) -> list[Segment]:
        """Of a window, whatever they say."""
        return [
            Segment(
                window.seek,
                piece.start_s,
                piece.end_s,
                self.text.decode(self.text.words_alone(piece.tokens)),
                piece.tokens,
                decoding.temperature,
                decoding.average_log_probability,
                decoding.compression_ratio,
                decoding.no_speech_probability,
            )
            for piece in cut.pieces
        ]

    def _write(self, segments: Sequence[Segment], decoding: WindowDecoding) -> list[Segment]:
        segments = [without_nothing(segment) for segment in segments]
        tokens = [token for segment in segments for token in segment.tokens]
        conditions = self.options.condition_on_previous_text
        self.history.add(tokens, forget=not conditions or decoding.temperature > HOT)
        return segments


def clips_in_frames(clips_s: Sequence[float], frames: int) -> list[tuple[int, int]]:
    """Starts and ends in frames of 10 ms: of the whole recording where no clip is named."""
    edges = [round(clip * FRAMES_PER_S) for clip in clips_s] or [0]
    if len(edges) % 2:
        edges.append(frames)
    return [*zip(edges[::2], edges[1::2], strict=True)]


def without_nothing(segment: Segment) -> Segment:
    """A segment that lasts nothing or says nothing, emptied; another one as it is."""
    if segment.start_s != segment.end_s and segment.text.strip():
        return segment
    return replace(segment, text="", tokens=(), words=())


def last_end(segments: Sequence[Segment]) -> float | None:
    """Where the last word ends, or without words the last segment; None: there is neither."""
    words = [segment.words[-1] for segment in segments if segment.words]
    if words:
        return words[-1].end_s
    return segments[-1].end_s if segments else None
