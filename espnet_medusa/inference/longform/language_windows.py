"""Windows of a recording in which its language is detected: those with speech.

In silence and noise, Whisper detects languages that nobody speaks (whisper.cpp 1104).
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice

from espnet_medusa.data.audio.voice_activity import MARGIN_S, PAUSE_S, SpeechActivity
from espnet_medusa.inference.longform.recording import LongRecording
from espnet_medusa.inference.longform.window import FRAMES_PER_S, Window
from espnet_medusa.networks.whisper.log_mel import HOP_SAMPLES

BLOCK_FRAMES = 6000  # voice activity of so much audio is computed at once
# Speech in a window; short noises are sometimes taken for speech, and only count without any other.
ENOUGH_S, SOME_S = 1.0, 0.01


def find_language_windows(
    recording: LongRecording,
    clips: Sequence[tuple[int, int]],
    window_frames: int,
    count: int,
    speech: SpeechActivity | None = None,
) -> list[Window]:
    """Return the first ``count`` windows with speech, or the start of the first clip without any.

    A window starts with its clip, or before speech that follows a pause.

    Args:
        clips: Start and end of the audio to decode, in frames of 10 ms.
        window_frames: Length of the model's window.
        speech: Of the whole recording; None: it is computed here, as far as necessary.
    """
    clips = [clip for clip in clips if clip[0] < min(clip[1], recording.frames)] or [(0, math.inf)]
    for least_s in (ENOUGH_S, SOME_S):
        starts = (
            (start, end)
            for clip, end in clips
            for start in _starts(recording, (clip, end), window_frames, speech, least_s)
        )
        found = [*islice(starts, count)]
        if found:
            break
    windows = []
    for start, end in found or clips[:1]:
        # Without clips, shorter recordings are padded with silence, as in openai-whisper.
        last = math.inf if end == recording.frames else end
        windows.append(Window(start, min(window_frames, last - start)))
    return windows


def _starts(
    recording: LongRecording,
    clip: tuple[int, int],
    window_frames: int,
    speech: SpeechActivity | None,
    least_s: float,
) -> Iterator[int]:
    """Yield the starts of windows with at least ``least_s`` of speech, which do not overlap."""
    start, end = clip[0], min(clip[1], recording.frames)
    while start < end:
        known, before, block = speech, 0, min(start + BLOCK_FRAMES, end)
        if known is None:  # compute it, also of a window that begins at the end of the block
            before = start
            part = slice(start * HOP_SAMPLES, min(block + window_frames, end) * HOP_SAMPLES)
            known = SpeechActivity.of(recording.samples[part])
        span_s = (start - before) / FRAMES_PER_S, (block - before) / FRAMES_PER_S
        found_s = known.speech_begins_s(*span_s, window_frames / FRAMES_PER_S, least_s)
        if found_s is None:
            start = block
            continue
        found = before + round(found_s * FRAMES_PER_S)
        if found - start >= PAUSE_S * FRAMES_PER_S:
            start = found - round(MARGIN_S * FRAMES_PER_S)
        yield start
        start += window_frames
