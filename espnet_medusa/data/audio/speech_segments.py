"""Cut long recordings at silences.

A frame is silent below a threshold between the levels of quiet and loud frames. Recordings are
read block by block, so hours of audio need little memory.
"""

from pathlib import Path

import numpy as np
import soundfile

from espnet_medusa.data.audio.downmix import Downmix
from espnet_medusa.data.audio.reader import SNDFILE_ERRORS, sndfile_reason
from espnet_medusa.data.audio.source import COPY_AGAIN, AudioError
from espnet_medusa.data.options import check_above

BLOCK_FRAMES = 1000
LOWEST_DB = -96.0  # the quantization of 16 bit; digital silence has no logarithm
FRAME_S = 0.02
MIN_SEGMENT_S = 0.5  # shorter segments are dropped
MIN_PAUSE_S = 0.3  # shorter pauses do not count
MAX_PAUSE_S = 2.0  # a longer pause between margins ends a segment
MARGIN_S = 0.15  # part of the pauses that a segment includes at either end
# With less than this between quiet (5%) and loud (95%) frames, SILENCE_DB is the threshold of
# speech. Otherwise the threshold is SILENCE_LEVEL between their levels (0: quiet, 1: loud).
CONTRAST_DB = 10.0
SILENCE_LEVEL = 0.4
# Frames below are silent, in dB of full scale, except in a recording that is nearly as quiet.
SILENCE_DB = -70.0
QUIET_DB = 20.0  # its loud frames are at most this much above SILENCE_DB


def read_levels(path: str | Path, start_s: float = 0.0, end_s: float | None = None) -> np.ndarray:
    """Measure the level of each frame of a recording; channels are mixed.

    Return decibels relative to full scale, float (F,); the last frame may be shorter. Raise
    AudioError if the audio cannot be read to its end.
    """
    levels = [np.zeros(0)]
    try:
        with soundfile.SoundFile(path) as sound:
            size = max(1, round(FRAME_S * sound.samplerate))
            sound.seek(round(start_s * sound.samplerate))
            left = sound.frames if end_s is None else round(end_s * sound.samplerate)
            left -= sound.tell()
            while left > 0:
                block = sound.read(min(left, size * BLOCK_FRAMES), "float32", always_2d=True)
                if not len(block):
                    break
                left -= len(block)
                downmix = Downmix(sound.samplerate)
                downmix.add(block)
                levels.append(_levels_of(downmix.finish(), size))
    except SNDFILE_ERRORS as error:
        reason = f"{path}: cannot be read to its end ({sndfile_reason(error)})"
        raise AudioError(reason, COPY_AGAIN) from error
    return np.concatenate(levels)


def _levels_of(samples: np.ndarray, size: int) -> np.ndarray:
    """Compute the level of each `size` samples: (N,) to (ceil(N / size),), in dB."""
    starts = np.arange(0, len(samples), size)
    counts = np.minimum(size, len(samples) - starts)
    power = np.add.reduceat(samples.astype(np.float64) ** 2, starts) / counts
    return np.maximum(10 * np.log10(power + 1e-12), LOWEST_DB)


def segment_levels(levels: np.ndarray, max_segment_s: float = 30.0) -> list[tuple[float, float]]:
    """Choose segments of speech and short pauses from levels (F,) in dB; cut at longer pauses.

    Speech without a pause is cut at its quietest frame in the second half of `max_segment_s`.
    Return starts and ends in seconds, in order, without overlap. Raise InputError if
    `max_segment_s` is not above ``MIN_SEGMENT_S``.
    """
    check_above(max_segment_s, MIN_SEGMENT_S, "max_segment_s")
    if not len(levels):
        return []
    joined: list[tuple[int, int]] = []
    longest = _frames(max_segment_s)
    for start, end in _find_speech(levels):
        for part in _cut(levels, start, end, longest):
            fits = joined and (
                part[0] - joined[-1][1] <= _frames(MAX_PAUSE_S)
                and part[1] - joined[-1][0] <= longest
            )
            if fits:
                joined[-1] = (joined[-1][0], part[1])
            else:
                joined.append(part)
    shortest = _frames(MIN_SEGMENT_S)
    return [
        (round(start * FRAME_S, 3), round(end * FRAME_S, 3))
        for start, end in joined
        if end - start >= shortest
    ]


def _frames(seconds: float) -> int:
    return int(seconds / FRAME_S + 1e-6)


def _find_speech(levels: np.ndarray) -> list[tuple[int, int]]:
    """Return first and last frame (exclusive) of speech between pauses, with margins."""
    quiet, loud = np.percentile(levels, [5, 95])
    threshold = SILENCE_DB
    if loud - quiet >= CONTRAST_DB:
        threshold = min(threshold, loud - QUIET_DB)
        threshold = max(threshold, quiet + SILENCE_LEVEL * (loud - quiet))
    silent = levels < threshold
    edges = np.flatnonzero(np.diff(np.pad(silent, 1)))
    pauses = [
        (start, end)
        for start, end in edges.reshape(-1, 2).tolist()
        # At the recording's ends any silence counts as a pause.
        if end - start >= _frames(MIN_PAUSE_S) or start == 0 or end == len(silent)
    ]
    starts = [0, *(end for _, end in pauses)]
    ends = [*(start for start, _ in pauses), len(silent)]
    room = [0, *((end - start) // 2 for start, end in pauses), 0]
    margin = _frames(MARGIN_S)
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
