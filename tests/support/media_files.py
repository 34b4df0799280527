"""Audio and video files that libsndfile does not read, written by PyAV, and broken files."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import soundfile
from refusals import assert_refused

from espnet_medusa.data.audio.reader import AudioError, read_audio

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
    """Write (samples,) or (samples, channels), or no sound, and ``video_s`` of black frames."""
    with av.open(str(path), "w", options=options) as container:
        streams = []
        if video_s:
            picture = container.add_stream("mpeg4", rate=10)
            picture.width, picture.height, picture.pix_fmt = 64, 64, "yuv420p"
            black, frames = np.zeros((64, 64, 3), np.uint8), []
            for place in range(round(video_s * 10)):
                frames.append(av.VideoFrame.from_ndarray(black, format="rgb24"))
                frames[-1].pts = place
            streams.append((picture, frames))
        if samples is not None:
            sound = container.add_stream(CODECS[path.suffix], rate=rate_hz)
            sound.layout = LAYOUTS[1 if samples.ndim == 1 else samples.shape[1]]
            sound.bit_rate = 96000
            # Interleaved: PyAV counts planes that do not exist with 8 channels and more.
            values = np.ascontiguousarray(samples, dtype=np.float32).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(values, format="flt", layout=sound.layout.name)
            frame.rate, frame.pts, frame.time_base = rate_hz, 0, Fraction(1, rate_hz)
            streams.append((sound, [frame]))
        for stream, frames in streams:
            for frame in (*frames, None):
                container.mux(stream.encode(frame))
    return path


def speechlike(seconds: float, rate_hz: int = 16000, seed: int = 0) -> np.ndarray:
    """Return (samples,) of low noise whose level changes: lossy codecs keep it."""
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal(round(seconds * rate_hz))
    window = np.hanning(rate_hz // 800)
    smooth = np.convolve(samples, window / window.sum(), mode="same")
    places = np.arange(0, len(smooth) + 1600, 1600)
    loud = smooth * np.interp(np.arange(len(smooth)), places, rng.uniform(0.1, 1.0, len(places)))
    return (0.5 * loud / np.abs(loud).max()).astype(np.float32)


def cut(path: Path, part: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])


def truncated(write: Callable, *arguments, part: float = 0.5, **options) -> Callable[[Path], None]:
    """Return a function that writes 2 s of audio and keeps the beginning of the file."""

    def write_and_cut(path: Path) -> None:
        write(path, speechlike(2.0, arguments[0]), *arguments, **options)
        cut(path, part)

    return write_and_cut


def write_nan(path: Path) -> None:
    samples = speechlike(1.0)
    samples[500] = np.nan
    soundfile.write(path, samples, 16000, subtype="FLOAT")


# Suffix, function that writes the file, part of the error message.
BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "empty": (".wav", Path.touch, "is an empty file"),
    "no_samples": (
        ".wav", lambda path: soundfile.write(path, np.zeros(0), 16000), "has zero length",
    ),
    "truncated_flac": (".flac", truncated(soundfile.write, 16000), "truncated"),
    "truncated_wav": (".wav", truncated(soundfile.write, 16000), "is truncated"),
    "truncated_mp4": (
        ".mp4", truncated(write_media, 16000, part=0.7, movflags="faststart"), "truncated",
    ),
    "indexless_mp4": (
        ".mp4", truncated(write_media, 16000), "is a damaged or truncated MP4 file",
    ),
    "truncated_webm": (".webm", truncated(write_media, 48000), "truncated"),
    "mute_video": (
        ".mp4", lambda path: write_media(path, None, video_s=1.0), "has no audio that FFmpeg",
    ),
    "text": (".mp4", lambda path: path.write_text("Words of a user\n" * 50), "is no audio that"),
    "page": (".m4a", lambda path: path.write_text("<html>404</html>"), "is an HTML or XML page"),
    "pointer": (
        ".wav", lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
        "git lfs pull",
    ),
    "bytes": (".wma", lambda path: path.write_bytes(bytes(range(256)) * 8), "is no audio that"),
    "not_a_number": (".wav", write_nan, "NaN or infinite"),
}  # fmt: skip


def write_broken(folder: Path, kind: str, name: str | None = None) -> Path:
    suffix, write, _ = BROKEN[kind]
    path = folder / f"{name or kind}{suffix}"
    write(path)
    return path


def assert_unreadable(message: str, entry: object, **options) -> str:
    return assert_refused(message, read_audio, str(entry), error=AudioError, **options)
