"""Windows: the result of an attempt, conditions for another one, and the cut into segments.

The conditions are openai-whisper's (Radford et al., arXiv 2212.04356, 4.5).
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from espnet_medusa.inference.longform.long_form_options import REPETITION, LongFormOptions
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.networks.whisper.transcript import TranscriptText

FRAMES_PER_S = 100
VALUES = "temperature", "average_log_probability", "compression_ratio", "no_speech_probability"


@dataclass(frozen=True)
class Window:
    """A span of a recording that is decoded at once."""

    seek: int  # first frame of 10 ms
    frames: int  # number of frames; at most the model's window
    # Start and end of each pause, in frames from the window's start; empty if not detected.
    pauses: tuple[tuple[int, int], ...] = ()

    @property
    def start_s(self) -> float:
        """Start in the recording."""
        return float(self.seek / FRAMES_PER_S)

    @property
    def end_s(self) -> float:
        """End in the recording, without padding."""
        return self.start_s + self.frames / FRAMES_PER_S


@dataclass(frozen=True)
class Clock:
    first: int  # token of 0 s
    frames: int  # frames of 10 ms between two timestamps
    count: int = 1501  # number of timestamps; 0 if the vocabulary has none

    @property
    def times(self) -> range:
        """Tokens of the timestamps."""
        return range(self.first, self.first + self.count)

    @property
    def step_s(self) -> float:
        """Seconds between two timestamps."""
        return self.frames / FRAMES_PER_S

    def seconds(self, token: int) -> float:
        """Return the time of a timestamp in its window."""
        return (token - self.first) * self.step_s


@dataclass(frozen=True)
class WindowDecoding:
    """The result of one attempt at a window."""

    tokens: tuple[int, ...]  # without prompt and end symbol
    text: str  # of the tokens, without timestamps
    temperature: float  # of the attempt
    average_log_probability: float  # of the tokens and the end symbol
    no_speech_probability: float  # of the no-speech token after the start of the transcript
    trace: dict[str, Any] | None = None  # as ``TraceText.describe``; None: not traced
    # End of a text without timestamps, in s, if speech that it lacks follows; else None.
    ends_early_s: float | None = None

    @property
    def log_probability(self) -> float:
        """Sum over the tokens and the end symbol."""
        return self.average_log_probability * (len(self.tokens) + 1)

    @property
    def values(self) -> dict[str, float]:
        """The ``VALUES`` that segments and traces have."""
        return {name: getattr(self, name) for name in VALUES}

    @property
    def compression_ratio(self) -> float:
        """zlib's; repetitive texts have a high one."""
        return compression_ratio(self.text)

    def has_failed(self, options: LongFormOptions) -> bool:
        """Return whether it fails by ``fallback_on``; ``any_failure`` is openai-whisper's rule."""
        if options.fallback_on == REPETITION:
            return self._repeats_itself(options)
        least = options.logprob_threshold
        improbable = least is not None and self.average_log_probability < least
        if improbable and self._is_probably_silence(options):
            return False
        return improbable or self._repeats_itself(options)

    def is_silence(self, options: LongFormOptions) -> bool:
        """Return whether the window has no segments: probable silence, and improbable text."""
        least = options.logprob_threshold
        probable = least is not None and self.average_log_probability > least
        return self._is_probably_silence(options) and not probable

    def _repeats_itself(self, options: LongFormOptions) -> bool:
        most = options.compression_ratio_threshold
        return most is not None and self.compression_ratio > most

    def _is_probably_silence(self, options: LongFormOptions) -> bool:
        most = options.no_speech_threshold
        return most is not None and self.no_speech_probability > most


def cut_window(
    window: Window, decoding: WindowDecoding, clock: Clock, text: TranscriptText
) -> tuple[list[Segment], int, bool]:
    """Cut between two consecutive timestamps, as openai-whisper's ``transcribe``.

    The segment after the last cut is not finished: the next window begins at the cut. If the window
    ends in a single timestamp, or has no consecutive timestamps, then the next window begins at the
    end of this one. Without consecutive timestamps all tokens are one segment; if its text ends
    early, then the next window begins there.

    Return the segments, the first frame of the next window, and whether a single timestamp ends the
    window: no speech follows it.
    """
    tokens, seek = decoding.tokens, window.seek + window.frames
    timed = [token in clock.times for token in tokens]
    ends_in_silence = timed[-2:] == [False, True]
    cuts = [place for place in range(1, len(tokens)) if timed[place - 1] and timed[place]]
    if cuts and ends_in_silence:
        cuts.append(len(tokens))
    elif cuts:
        seek = window.seek + (tokens[cuts[-1] - 1] - clock.first) * clock.frames
    parts = [tokens[first:last] for first, last in zip([0, *cuts], cuts, strict=False)]
    spans_s = [(clock.seconds(part[0]), clock.seconds(part[-1])) for part in parts]
    if not cuts:  # the segment ends at the last timestamp if that is above 0 s
        last = next((token for token in reversed(tokens) if token in clock.times), clock.first)
        end_s = decoding.ends_early_s or clock.seconds(last) or window.frames / FRAMES_PER_S
        parts, spans_s = [tokens], [(0.0, end_s)]
        if decoding.ends_early_s is not None:
            seek = window.seek + round(FRAMES_PER_S * end_s)
    values, segments = decoding.values, []
    for part, (start_s, end_s) in zip(parts, spans_s, strict=True):
        times_s = window.start_s + start_s, window.start_s + end_s
        text_of_part = text.decode(text.text_tokens(part))
        segments.append(Segment(window.seek, *times_s, text_of_part, part, **values))
    return segments, seek, ends_in_silence


def trace_window(
    window: Window, attempts: Sequence[WindowDecoding], chosen: WindowDecoding
) -> dict[str, Any]:
    """Return the trace of a window (docs/see_a_decoding.md)."""
    return {
        "start_s": window.start_s,
        "end_s": window.end_s,
        "attempts": [
            {**tried.values, "chosen": tried is chosen, **tried.trace} for tried in attempts
        ],
    }


def compression_ratio(text: str) -> float:
    """Return the compression ratio of a text by zlib, without spaces at its ends."""
    encoded = text.strip().encode("utf-8")
    return len(encoded) / len(zlib.compress(encoded))
