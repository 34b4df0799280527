"""Audio and video files that libsndfile does not read, written by PyAV."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

CODECS = {".m4a": "aac", ".mp4": "aac", ".mov": "alac", ".webm": "libopus", ".mka": "libopus",
          ".mkv": "ac3", ".wma": "wmav2", ".aac": "aac", ".flv": "aac", ".avi": "ac3"}  # fmt: skip

LAYOUTS = {1: "mono", 2: "stereo", 8: "7.1"}


def write_media(
    path: Path,
    samples: np.ndarray | None,
    rate_hz: int = 16000,
    video_s: float = 0.0,
    **options: str,
) -> Path:
    """Write a file whose suffix says what it is.

    Args:
        samples: (samples,) or (samples, 2 or 8) in [-1, 1]; None: there is no sound.
        rate_hz: Of the samples.
        video_s: Of black frames beside them; 0: there is no picture.
    """
    with av.open(str(path), "w", options=options) as container:
        picture = container.add_stream("mpeg4", rate=10) if video_s else None
        sound = None
        if samples is not None:
            sound = container.add_stream(CODECS[path.suffix], rate=rate_hz)
            sound.layout = LAYOUTS[1 if samples.ndim == 1 else samples.shape[1]]
            sound.bit_rate = 96000
        if picture is not None:
            picture.width, picture.height, picture.pix_fmt = 64, 64, "yuv420p"
            black = np.zeros((64, 64, 3), np.uint8)
            frames = []
            for place in range(round(video_s * 10)):
                frames.append(av.VideoFrame.from_ndarray(black, format="rgb24"))
                frames[-1].pts = place
            _mux(container, picture, frames)
        if sound is not None:
            _mux(container, sound, [_sound_frame(samples, rate_hz, sound.layout.name)])
    return path


def _sound_frame(samples: np.ndarray, rate_hz: int, layout: str) -> av.AudioFrame:
    # Interleaved: of 8 channels and more PyAV counts planes that are not there.
    values = np.ascontiguousarray(samples, dtype=np.float32).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(values, format="flt", layout=layout)
    frame.rate, frame.pts, frame.time_base = rate_hz, 0, Fraction(1, rate_hz)
    return frame


def _mux(container, stream, frames) -> None:
    for frame in (*frames, None):
        for packet in stream.encode(frame):
            container.mux(packet)


def speechlike(seconds: float, rate_hz: int = 16000, seed: int = 0) -> np.ndarray:
    """(samples,) of low noise whose level changes: lossy codecs keep it."""
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal(round(seconds * rate_hz))
    width = rate_hz // 800
    smooth = np.convolve(samples, np.hanning(width) / np.hanning(width).sum(), mode="same")
    levels = np.interp(
        np.arange(len(smooth)), np.arange(0, len(smooth) + 1600, 1600),
        rng.uniform(0.1, 1.0, len(np.arange(0, len(smooth) + 1600, 1600))),
    )  # fmt: skip
    loud = smooth * levels
    return (0.5 * loud / np.abs(loud).max()).astype(np.float32)
