"""Media files with chosen timestamps, codecs and containers, written by PyAV."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from media_files import speechlike


def write_timed(
    path: Path,
    codec: str,
    rate_hz: int = 48000,
    seconds: float = 2.0,
    start_s: float = 0.0,
    gaps: Sequence[tuple[float, float]] = (),
    video: tuple[str, float, float] | None = None,
    container: str | None = None,
    frame_samples: Sequence[int] = (),
) -> np.ndarray:
    """Write sound (samples,), and return it.

    Args:
        start_s: Timestamp of the first sample.
        gaps: Place in the sound, and length, of jumps of the timestamps, in s.
        video: Codec, start and length in s of black pictures; None: there is none.
        frame_samples: Lengths of frames, in turn, for codecs of any; others have their own.
    """
    sound = speechlike(seconds, rate_hz)
    with av.open(str(path), "w", format=container) as output:
        packets = [] if video is None else _pictures(output, *video)
        stream = output.add_stream(codec, rate=rate_hz)
        stream.layout = "mono"
        place, number = 0, 0
        while place < len(sound):
            own = stream.codec_context.frame_size or 1024
            count = frame_samples[number % len(frame_samples)] if frame_samples else own
            values = np.ascontiguousarray(sound[None, place : place + count])
            frame = av.AudioFrame.from_ndarray(values, format="flt", layout="mono")
            shift_s = start_s + sum(length for at, length in gaps if place >= at * rate_hz)
            frame.rate, frame.time_base = rate_hz, Fraction(1, rate_hz)
            frame.pts = place + round(shift_s * rate_hz)
            packets += stream.encode(frame)
            place, number = place + count, number + 1
        packets += stream.encode(None)
        packets = [packet for packet in packets if packet.dts is not None]
        for packet in sorted(packets, key=lambda one: one.dts * one.time_base):
            output.mux(packet)
    return sound


def _pictures(output: av.container.OutputContainer, codec: str, start_s: float, length_s: float):
    picture = output.add_stream(codec, rate=25)
    picture.width, picture.height, picture.pix_fmt = 64, 64, "yuv420p"
    black, packets = np.zeros((64, 64, 3), np.uint8), []
    for place in range(round(25 * length_s)):
        frame = av.VideoFrame.from_ndarray(black, format="rgb24")
        frame.pts, frame.time_base = place + round(25 * start_s), Fraction(1, 25)
        packets += picture.encode(frame)
    return [*packets, *picture.encode(None)]
