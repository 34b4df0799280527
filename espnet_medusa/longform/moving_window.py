"""One recording under way: which window is next, and what its decoding makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from espnet_medusa.longform.fallback import WindowDecoding, is_silence
from espnet_medusa.longform.history import History
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.segment import Segment
from espnet_medusa.longform.window import FRAMES_PER_S, Clock, CutWindow, Window, cut_window
from espnet_medusa.whisper.transcript_text import TranscriptText

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
    """

    frames: int
    window_frames: int
    clock: Clock
    text: TranscriptText
    options: LongFormOptions
    history: History
    seek: int = field(init=False)
    clips: list[tuple[int, int]] = field(init=False)

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

    def take(self, window: Window, decoding: WindowDecoding) -> list[Segment]:
        """Segments of a window; moves on behind them."""
        if is_silence(decoding, self.options):
            self.seek = window.seek + window.frames
            return []
        cut = cut_window(decoding.tokens, window, self.clock)
        self.seek = cut.seek
        return self._write(self.segments(window, cut, decoding), decoding)

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
