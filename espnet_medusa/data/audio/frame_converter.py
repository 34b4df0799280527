"""Decoded frames of FFmpeg to arrays of one rate and number of channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import av

SILENCE_BLOCK = 1 << 16  # samples


class FrameConverter:
    """Converts frames to interleaved float32 (samples, channels).

    All blocks have one rate. Joined files may differ in channels: FFmpeg would mix them down, and
    opposite phases would cancel each other.
    """

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self.resampler: av.AudioResampler | None = None
        self.kind: tuple | None = None  # of the last frame

    def __call__(self, frame: av.AudioFrame, silence: int = 0) -> Iterator[np.ndarray]:
        """Convert a frame; ``silence``: number of zeros before it."""
        import av  # slow to import

        kind = (frame.format.name, frame.layout.name, frame.sample_rate)
        if kind != self.kind:
            yield from self.flush()
            self.kind = kind
            # Not planar: for 8 channels and more PyAV counts planes that do not exist.
            self.resampler = av.AudioResampler("flt", frame.layout, self.rate_hz)
        for start in range(0, silence, SILENCE_BLOCK):
            count = min(SILENCE_BLOCK, silence - start)
            yield np.zeros((count, frame.layout.nb_channels), dtype=np.float32)
        frame.pts = None  # the resampler does not fill gaps
        yield from map(_samples, self.resampler.resample(frame))

    def flush(self) -> Iterator[np.ndarray]:
        if self.resampler is not None:
            yield from map(_samples, self.resampler.resample(None))


def _samples(frame: av.AudioFrame) -> np.ndarray:
    """Convert an interleaved frame to (samples, channels)."""
    return frame.to_ndarray().reshape(-1, frame.layout.nb_channels)
