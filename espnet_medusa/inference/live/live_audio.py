"""The samples of a stream that a live transcription still needs, and the speech in them."""

from __future__ import annotations

import numpy as np

from espnet_medusa.data.audio.voice_activity import (
    RATE_HZ,
    SILENT,
    STEP_S,
    SpeechStream,
    VadParameters,
)

SPEECH = VadParameters.threshold


class LiveAudio:
    """Samples (N,) at 16 kHz of a stream; those before ``start`` are freed.

    Times are seconds in the stream. Without ``detects_speech``, everything is speech.
    """

    def __init__(self, detects_speech: bool):
        self.start, self.samples = 0, np.zeros(0, np.float32)
        self.pieces: list[np.ndarray] = []
        self.added = 0  # number of samples so far
        self.speech = SpeechStream() if detects_speech else None

    def add(self, samples: np.ndarray) -> None:
        self.pieces.append(np.array(samples, np.float32))
        self.added += len(samples)

    @property
    def end_s(self) -> float:
        return self.added / RATE_HZ

    @property
    def start_s(self) -> float:
        return self.start / RATE_HZ

    def take(self, final: bool) -> None:
        """Append the added pieces to ``samples``; ``final``: no samples follow."""
        new = np.concatenate(self.pieces) if self.pieces else np.zeros(0, np.float32)
        self.samples, self.pieces = np.concatenate([self.samples, new]), []
        if self.speech is not None:
            self.speech.add(new, final)

    def read(self, end: int) -> np.ndarray:
        """Return the samples from ``start`` to a sample of the stream."""
        return self.samples[: end - self.start]

    def cut(self, start_s: float) -> None:
        """Free the samples before a time."""
        start = min(max(round(start_s * RATE_HZ), self.start), self.start + len(self.samples))
        self.samples = self.samples[start - self.start :].copy()
        self.start = start
        if self.speech is not None:
            self.speech.forget(start)

    def speech_s(self, start_s: float, end_s: float) -> float:
        """Return the duration of speech in a span."""
        if self.speech is None:
            return max(end_s - start_s, 0.0)
        return STEP_S * len(self.speech.places(start_s, end_s, SPEECH))

    def speech_begins_s(self, start_s: float, end_s: float) -> float | None:
        """Return the time of the first sound in a span that may be speech; None: there is none."""
        if self.speech is None:
            return start_s
        places = self.speech.places(start_s, end_s, SILENT)
        return max(STEP_S * float(places[0]), start_s) if len(places) else None

    def speech_ends_s(self, start_s: float, end_s: float) -> float:
        """Return the end of the last speech in a span, or its start."""
        if self.speech is None:
            return end_s
        places = self.speech.places(start_s, end_s, SILENT)
        return min(STEP_S * float(places[-1] + 1), end_s) if len(places) else start_s
