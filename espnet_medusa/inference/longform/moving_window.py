"""The window that moves through a recording, and the prompt before each window."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from espnet_medusa.inference.longform.hallucinations import (
    Stretch,
    first_hallucination,
    leading_silence,
)
from espnet_medusa.inference.longform.long_form_options import ATTENTION, LongFormOptions
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.inference.longform.window import (
    FRAMES_PER_S,
    Clock,
    Window,
    WindowDecoding,
    cut_window,
)
from espnet_medusa.inference.longform.word_times import TimedWord, add_words
from espnet_medusa.networks.whisper.transcript import TranscriptText

# Text tokens of a window to its words.
Align = Callable[[Sequence[int]], list[TimedWord]]

HOT = 0.5  # a text of a higher temperature is not used as prompt


@dataclass
class History:
    """The tokens of a recording so far, for prompts."""

    initial: tuple[int, ...]  # tokens of the user's prompt
    most: int  # maximum number of tokens of a prompt
    carries_initial: bool = False  # whether the user's prompt precedes every window
    tokens: list[int] = field(init=False)  # the user's prompt and all decoded tokens
    forgotten: int = 0  # number of first tokens that prompts omit; a carried prompt stays

    def __post_init__(self) -> None:
        self.tokens = [*self.initial]

    @property
    def written(self) -> list[int]:
        """All decoded tokens."""
        return self.tokens[len(self.initial) :]

    def prompt(self) -> list[int]:
        if not self.carries_initial:
            return _last(self.tokens[self.forgotten :], self.most)
        decoded = self.tokens[max(len(self.initial), self.forgotten) :]
        return _last([*self.initial, *_last(decoded, self.most - len(self.initial))], self.most)

    def add(self, tokens: Sequence[int], forget: bool) -> None:
        """Add the tokens of a window; ``forget``: later prompts have no tokens decoded so far."""
        self.tokens += tokens
        if forget:
            self.forgotten = len(self.tokens)


def _last(tokens: list[int], count: int) -> list[int]:
    return tokens[max(len(tokens) - max(count, 0), 0) :]


@dataclass
class MovingWindow:
    """Moves through a recording as the window of openai-whisper's ``transcribe``."""

    frames: int  # of the recording, 10 ms each
    window_frames: int  # of the model's window
    clock: Clock  # converts timestamps
    text: TranscriptText  # converts tokens to text
    options: LongFormOptions  # prompts, word times and thresholds
    history: History  # tokens for prompts
    # Start and end (exclusive) in frames of the clips that are not decoded yet.
    clips: list[tuple[int, int]]
    last_speech_s: float = 0.0  # end of the last word
    seek: int = 0  # first frame of the next window

    @property
    def done_s(self) -> float:
        """Seconds of the recording before the next window."""
        return min(self.seek, self.frames) / FRAMES_PER_S

    def next(self) -> Window | None:
        """Return the next window, or None at the end."""
        while self.clips:
            start, end = self.clips[0]
            self.seek = max(self.seek, start)
            if self.seek < end:
                # A clip may end after the recording.
                rest = min(self.window_frames, self.frames - self.seek, end - self.seek)
                if rest > 0:
                    return Window(self.seek, rest)
            self.clips.pop(0)
            if self.clips:
                self.seek = self.clips[0][0]
        return None

    def skip(self, window: Window) -> None:
        """Move past a window without segments."""
        self.seek = window.seek + window.frames

    def take(
        self, window: Window, decoding: WindowDecoding, align: Align | None = None
    ) -> list[Segment]:
        """Return a window's segments, without words if ``align`` is None, and move to the next."""
        if decoding.is_silence(self.options):
            self.skip(window)
            return []
        segments, self.seek, quiet_end = cut_window(window, decoding, self.clock, self.text)
        if align is not None:
            segments = self._add_words(window, segments, quiet_end, align)
            self.seek = max(self.seek, window.seek + 1)  # never stay at the same window
            if segments is None:
                return []
        segments = [
            # Segments without duration or text have no text, tokens and words.
            segment
            if segment.start_s != segment.end_s and segment.text.strip()
            else replace(segment, text="", tokens=(), words=())
            for segment in segments
        ]
        tokens = [token for segment in segments for token in segment.tokens]
        conditions = self.options.condition_on_previous_text
        self.history.add(tokens, forget=not conditions or decoding.temperature > HOT)
        return segments

    def _add_words(
        self, window: Window, segments: list[Segment], ends_in_silence: bool, align: Align
    ) -> list[Segment] | None:
        """Add words, and seek to the end of the last one; None: the window has no segments."""
        counts = [len(self.text.text_tokens(segment.tokens)) for segment in segments]
        tokens = [t for segment in segments for t in self.text.text_tokens(segment.tokens)]
        marks = self.options.prepend_punctuations, self.options.append_punctuations
        known_s = window.start_s, self.last_speech_s
        # Attention assigns pauses to words; CTC has blanks there.
        hold_pauses = self.options.word_times == ATTENTION
        segments = add_words(segments, counts, align(tokens), *known_s, *marks, hold_pauses)
        end_s, threshold_s = last_end(segments), self.options.hallucination_silence_threshold
        window_end_s = float((window.seek + self.window_frames) / FRAMES_PER_S)
        if not ends_in_silence and end_s is not None and end_s > window.start_s:
            self.seek = round(end_s * FRAMES_PER_S)
            if threshold_s is not None and window_end_s - end_s <= threshold_s:
                self.skip(window)
        if threshold_s is not None:
            stretch = Stretch(window, window_end_s, self.frames, self.last_speech_s)
            seek = leading_silence(segments, stretch, threshold_s)
            if seek is not None:
                self.seek = seek
                return None
            hallucination = first_hallucination(segments, stretch, threshold_s)
            if hallucination is not None:
                place, self.seek = hallucination
                segments = segments[:place]
        end_s = last_end(segments)
        self.last_speech_s = self.last_speech_s if end_s is None else end_s
        return segments


def clips_in_frames(clips_s: Sequence[float], frames: int) -> list[tuple[int, int]]:
    """Return the clips (start, end) in frames of 10 ms; without clips, the whole recording."""
    edges = [round(clip * FRAMES_PER_S) for clip in clips_s] or [0]
    if len(edges) % 2:
        edges.append(frames)
    return [*zip(edges[::2], edges[1::2], strict=True)]


def last_end(segments: Sequence[Segment]) -> float | None:
    """Return the end of the last word or, if there are no words, of the last segment."""
    words = [segment.words[-1] for segment in segments if segment.words]
    if words:
        return words[-1].end_s
    return segments[-1].end_s if segments else None
