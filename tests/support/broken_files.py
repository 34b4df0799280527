"""Folders of recordings some of which are broken, each in its way."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import soundfile
from media_files import speechlike, write_media


def cut(path: Path, part: float = 0.5) -> None:
    """Keep the beginning of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])


def _truncated_flac(path: Path) -> None:
    soundfile.write(path, speechlike(2.0), 16000)
    cut(path)


def _truncated_wav(path: Path) -> None:
    soundfile.write(path, speechlike(2.0), 16000, subtype="PCM_16")
    cut(path)


def _truncated_mp4(path: Path) -> None:
    write_media(path, speechlike(2.0), movflags="faststart")
    cut(path, 0.7)


def _indexless_mp4(path: Path) -> None:
    write_media(path, speechlike(2.0))
    cut(path)


def _truncated_webm(path: Path) -> None:
    write_media(path, speechlike(2.0, 48000), 48000)
    cut(path)


def _not_a_number(path: Path) -> None:
    samples = speechlike(1.0)
    samples[500] = np.nan
    soundfile.write(path, samples, 16000, subtype="FLOAT")


def _no_samples(path: Path) -> None:
    soundfile.write(path, np.zeros(0), 16000)


# Suffix, how it is made, and what its line says.
BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "empty": (".wav", Path.touch, "is an empty file"),
    "no_samples": (".wav", _no_samples, "has zero length"),
    "truncated_flac": (".flac", _truncated_flac, "truncated"),
    "truncated_wav": (".wav", _truncated_wav, "is truncated"),
    "truncated_mp4": (".mp4", _truncated_mp4, "truncated"),
    "indexless_mp4": (".mp4", _indexless_mp4, "is a damaged or truncated MP4 file"),
    "truncated_webm": (".webm", _truncated_webm, "truncated"),
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
    "not_a_number": (".wav", _not_a_number, "NaN or infinite"),
}  # fmt: skip


def write_broken(folder: Path, kind: str, name: str | None = None) -> Path:
    """Write a file of a kind in ``BROKEN``."""
    suffix, write, _ = BROKEN[kind]
    path = folder / f"{name or kind}{suffix}"
    write(path)
    return path
