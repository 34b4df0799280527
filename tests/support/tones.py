"""Generated audio and its measurements."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

RATE_HZ = 16000


def tone(frequency_hz: float, duration_s: float, rate_hz: int = RATE_HZ) -> np.ndarray:
    """A sine of amplitude 0.5, float32 (N,)."""
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * frequency_hz * time_s)).astype(np.float32)


def peak_frequency_hz(samples: np.ndarray, rate_hz: int) -> float:
    """The strongest frequency of mono audio."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum)) * rate_hz / len(samples)


def edit(path: Path, change: Callable[[str], str]) -> None:
    """Rewrite a text file."""
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
