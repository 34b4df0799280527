"""Windows, and their tokens cut into segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FRAMES_PER_S = 100


@dataclass(frozen=True)
class Window:
    """A span of a recording that is decoded at once."""

    seek: int  # First frame of 10 ms
    frames: int  # number of frames; zeros pad a window that is shorter than the model's

    @property
    def start_s(self) -> float:
        """Start in the recording."""
        return float(self.seek / FRAMES_PER_S)


@dataclass(frozen=True)
class Clock:
    """Converts timestamps."""

    first: int  # Token of 0 s; all later ids are timestamps
    frames: int  # Frames of 10 ms between two timestamps

    @property
    def step_s(self) -> float:
        """Seconds between two timestamps."""
        return self.frames / FRAMES_PER_S

    def seconds(self, token: int) -> float:
        """Return the time of a timestamp in its window."""
        return (token - self.first) * self.step_s


@dataclass(frozen=True)
class Piece:
    """A segment's tokens, and its times in the recording."""

    start_s: float
    end_s: float
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class CutWindow:
    """The segments of a window."""

    pieces: tuple[Piece, ...]  # its segments
    seek: int  # First frame of the next window
    ends_in_silence: bool  # whether a single timestamp ends the window: no speech follows it


def cut_window(tokens: Sequence[int], window: Window, clock: Clock) -> CutWindow:
    """Cut between two consecutive timestamps, as openai-whisper's ``transcribe``.

    The segment after the last cut is not finished: the next window begins at the cut. If the window
    ends in a single timestamp, or has no consecutive timestamps, then the next window begins at the
    end of this one. Without consecutive timestamps all tokens are one segment.
    """
    timed = [token >= clock.first for token in tokens]
    ends_in_silence = timed[-2:] == [False, True]
    cuts = [place for place in range(1, len(tokens)) if timed[place - 1] and timed[place]]
    seek = window.seek + window.frames
    if not cuts:
        return CutWindow((_whole(tokens, window, clock),), seek, ends_in_silence)
    if ends_in_silence:
        cuts.append(len(tokens))
    pieces = tuple(
        Piece(
            window.start_s + clock.seconds(tokens[first]),
            window.start_s + clock.seconds(tokens[last - 1]),
            tuple(tokens[first:last]),
        )
        for first, last in zip([0, *cuts], cuts, strict=False)
    )
    if not ends_in_silence:
        seek = window.seek + (tokens[cuts[-1] - 1] - clock.first) * clock.frames
    return CutWindow(pieces, seek, ends_in_silence)


def _whole(tokens: Sequence[int], window: Window, clock: Clock) -> Piece:
    """Return all tokens as one segment, which ends at the last timestamp if there is one."""
    duration_s = window.frames / FRAMES_PER_S
    times = [token for token in tokens if token >= clock.first]
    if times and times[-1] != clock.first:
        duration_s = clock.seconds(times[-1])
    return Piece(window.start_s, window.start_s + duration_s, tuple(tokens))
