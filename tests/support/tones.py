"""Generated audio: tones, music, synthesized speech; and its measurements."""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import soxr

RATE_HZ = 16000


def tone(frequency_hz: float, duration_s: float, rate_hz: int = RATE_HZ) -> np.ndarray:
    """A sine of amplitude 0.5, float32 (N,)."""
    time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * frequency_hz * time_s)).astype(np.float32)


def peak_frequency_hz(samples: np.ndarray, rate_hz: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum)) * rate_hz / len(samples)


def edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


@cache
def say(text: str) -> np.ndarray:
    """Return the mini recipe's synthesized speech at 16 kHz (N,), without silence around it."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "egs/mini_synth/asr1/local"))
    from espeak import Speaker

    samples, rate_hz = Speaker().speak(text, "en-us+f3")
    samples = soxr.resample(samples, rate_hz, RATE_HZ)
    loud = np.flatnonzero(np.abs(samples) > 0.01)
    return samples[loud[0] : loud[-1] + 1]


def lay_out(
    said: Sequence[np.ndarray], pauses_s: Sequence[float]
) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Concatenate pieces with a pause before each and after the last, in a little noise.

    Returns (samples,), and start and end of each piece in s.
    """
    parts, places, position = [], [], 0
    for pause_s, piece in zip(pauses_s, [*said, np.zeros(0, np.float32)], strict=True):
        position += round(pause_s * RATE_HZ)
        places.append((position / RATE_HZ, (position + len(piece)) / RATE_HZ))
        parts += [np.zeros(round(pause_s * RATE_HZ), np.float32), piece]
        position += len(piece)
    samples = np.concatenate(parts)
    samples += 1e-3 * np.random.default_rng(0).standard_normal(len(samples)).astype(np.float32)
    return samples.astype(np.float32), places[:-1]


def chords(seconds: float) -> np.ndarray:
    """Return music without a voice at 16 kHz (N,): chords of decaying sines."""
    time_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    roots_hz = 110 * 2 ** (np.array([0, 5, 7, 0]) / 12)
    root = roots_hz[(time_s // 2).astype(int) % 4]
    ringing = np.exp(-1.5 * (time_s % 2))
    tones = sum(np.sin(2 * np.pi * root * ratio * time_s) for ratio in (1, 1.25, 1.5, 2))
    return (0.1 * ringing * tones).astype(np.float32)
