"""Cut long recordings at silences.

A frame is silent below a threshold between the levels of quiet and loud frames. Recordings are
read block by block, so hours of audio need little memory.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from espnet_medusa.audio.reader import SNDFILE_ERRORS
from espnet_medusa.audio.source import COPY_AGAIN, AudioError
from espnet_medusa.errors import InputError

BLOCK_FRAMES = 1000
LOWEST_DB = -96.0  # the quantization of 16 bit; digital silence has no logarithm


@dataclass(frozen=True)
class SegmentOptions:
    """Options of `segment_levels`.

    With less than ``contrast_db`` between quiet (5%) and loud (95%) frames, the threshold of speech
    is ``silence_db``. Otherwise it is ``silence_level`` between their levels (0: quiet, 1: loud).
    """

    max_segment_s: float = 30.0  # longest segment; Whisper's window
    min_segment_s: float = 0.5  # shorter sounds are dropped
    min_pause_s: float = 0.3  # shorter pauses do not count
    max_pause_s: float = 2.0  # longer pauses end a segment
    margin_s: float = 0.15  # part of the pauses that a segment includes at either end
    frame_s: float = 0.02  # resolution
    contrast_db: float = 10.0
    silence_level: float = 0.4
    silence_db: float = -70.0  # frames below are always silent, in dB of full scale

    def __post_init__(self):
        if not 2 * self.frame_s <= self.min_segment_s < self.max_segment_s:
            raise InputError(
                f"max_segment_s must be above min_segment_s: {self.max_segment_s:g} s and"
                f" {self.min_segment_s:g} s; allowed min_segment_s: {2 * self.frame_s:g} s or more"
            )

    def frames(self, seconds: float) -> int:
        """Convert seconds to frames, rounded down."""
        return int(seconds / self.frame_s + 1e-6)


def read_levels(
    path: str | Path,
    options: SegmentOptions | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
) -> np.ndarray:
    """Measure the level of each frame of a recording; channels are averaged.

    Return decibels relative to full scale, float (F,); the last frame may be shorter. Raise
    AudioError if the audio cannot be read to its end.
    """
    options = options or SegmentOptions()
    levels = [np.zeros(0)]
    try:
        with soundfile.SoundFile(path) as sound:
            size = max(1, round(options.frame_s * sound.samplerate))
            sound.seek(round(start_s * sound.samplerate))
            left = sound.frames if end_s is None else round(end_s * sound.samplerate)
            left -= sound.tell()
            while left > 0:
                block = sound.read(min(left, size * BLOCK_FRAMES), "float32", always_2d=True)
                if not len(block):
                    break
                left -= len(block)
                levels.append(_levels_of(block.mean(axis=1), size))
    except SNDFILE_ERRORS as error:
        reason = " ".join(str(getattr(error, "error_string", error)).split())
        raise AudioError(f"{path}: cannot be read to its end ({reason})", COPY_AGAIN) from error
    return np.concatenate(levels)


def _levels_of(samples: np.ndarray, size: int) -> np.ndarray:
    """Compute the level of each `size` samples: (N,) to (ceil(N / size),), in dB."""
    starts = np.arange(0, len(samples), size)
    counts = np.minimum(size, len(samples) - starts)
    power = np.add.reduceat(samples.astype(np.float64) ** 2, starts) / counts
    return np.maximum(10 * np.log10(power + 1e-12), LOWEST_DB)


def segment_levels(
    levels: np.ndarray, options: SegmentOptions | None = None
) -> list[tuple[float, float]]:
    """Choose segments of speech and short pauses from levels (F,) in dB; cut at longer pauses.

    Speech without a pause is cut at its quietest frame in the second half of `max_segment_s`.
    Return starts and ends in seconds, in order, without overlap.
    """
    options = options or SegmentOptions()
    if not len(levels):
        return []
    joined: list[tuple[int, int]] = []
    longest = options.frames(options.max_segment_s)
    for start, end in _find_speech(levels, options):
        for part in _cut(levels, start, end, longest):
            fits = joined and (
                part[0] - joined[-1][1] <= options.frames(options.max_pause_s)
                and part[1] - joined[-1][0] <= longest
            )
            if fits:
                joined[-1] = (joined[-1][0], part[1])
            else:
                joined.append(part)
    shortest = options.frames(options.min_segment_s)
    return [
        (round(start * options.frame_s, 3), round(end * options.frame_s, 3))
        for start, end in joined
        if end - start >= shortest
    ]


def _find_speech(levels: np.ndarray, options: SegmentOptions) -> list[tuple[int, int]]:
    """Return first and last frame (exclusive) of speech between pauses, with margins."""
    quiet, loud = np.percentile(levels, [5, 95])
    threshold = options.silence_db
    if loud - quiet >= options.contrast_db:
        threshold = max(threshold, quiet + options.silence_level * (loud - quiet))
    silent = levels < threshold
    edges = np.flatnonzero(np.diff(np.concatenate([[False], silent, [False]]).astype(np.int8)))
    pauses = [
        (start, end)
        for start, end in edges.reshape(-1, 2).tolist()
        # At the recording's ends any silence counts as a pause.
        if end - start >= options.frames(options.min_pause_s) or start == 0 or end == len(silent)
    ]
    starts = [0, *(end for _, end in pauses)]
    ends = [*(start for start, _ in pauses), len(silent)]
    room = [0, *((end - start) // 2 for start, end in pauses), 0]
    margin = options.frames(options.margin_s)
    return [
        (max(0, start - min(margin, before)), min(len(silent), end + min(margin, after)))
        for start, end, before, after in zip(starts, ends, room, room[1:], strict=False)
        if end > start
    ]


def _cut(levels: np.ndarray, start: int, end: int, longest: int) -> list[tuple[int, int]]:
    """Cut [start, end) into parts of at most `longest` frames."""
    parts = []
    while end - start > longest:
        first = start + longest // 2
        cut = first + int(np.argmin(levels[first : start + longest])) + 1
        parts.append((start, cut))
        start = cut
    return [*parts, (start, end)]
