"""A window's tokens cut into segments, and where the next window begins: a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FRAMES_PER_S = 100


@dataclass(frozen=True)
class Window:
    """A stretch of a recording that is decoded at once.

    Attributes:
        seek: First frame of 10 ms.
        frames: So many; what the model hears behind them is empty.
    """

    seek: int
    frames: int

    @property
    def start_s(self) -> float:
        """In the recording."""
        return float(self.seek / FRAMES_PER_S)


@dataclass(frozen=True)
class Clock:
    """What timestamps mean.

    Attributes:
        first: Token of 0 s; all from there on are times.
        frames: Frames of 10 ms from one to the next.
    """

    first: int
    frames: int

    @property
    def step_s(self) -> float:
        """Seconds from one to the next."""
        return self.frames / FRAMES_PER_S

    def seconds(self, token: int) -> float:
        """Of a timestamp, within its window."""
        return (token - self.first) * self.step_s


@dataclass(frozen=True)
class Piece:
    """A segment's tokens, and its times in the recording."""

    start_s: float
    end_s: float
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class CutWindow:
    """What a window holds.

    Attributes:
        pieces: Its segments.
        seek: First frame of the next window.
        ends_in_silence: Whether the last timestamp has no partner: nothing is said behind it.
    """

    pieces: tuple[Piece, ...]
    seek: int
    ends_in_silence: bool


def cut_window(tokens: Sequence[int], window: Window, clock: Clock) -> CutWindow:
    """Cut where one timestamp follows another, as openai-whisper's ``transcribe`` does.

    What stands behind the last such place is not finished: the next window begins there. Where the
    last timestamp is alone nothing follows, and where no two stand together all is one segment; the
    next window begins behind this one then.
    """
    timed = [token >= clock.first for token in tokens]
    ends_in_silence = timed[-2:] == [False, True]
    cuts = [place for place in range(1, len(tokens)) if timed[place - 1] and timed[place]]
    behind = window.seek + window.frames
    if not cuts:
        return CutWindow((_whole(tokens, window, clock),), behind, ends_in_silence)
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
        behind = window.seek + (tokens[cuts[-1] - 1] - clock.first) * clock.frames
    return CutWindow(pieces, behind, ends_in_silence)


def _whole(tokens: Sequence[int], window: Window, clock: Clock) -> Piece:
    """All of a window, up to its last timestamp where it has one."""
    duration_s = window.frames / FRAMES_PER_S
    times = [token for token in tokens if token >= clock.first]
    if times and times[-1] != clock.first:
        duration_s = clock.seconds(times[-1])
    return Piece(window.start_s, window.start_s + duration_s, tuple(tokens))
