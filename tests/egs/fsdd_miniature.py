"""The Free Spoken Digit Dataset in miniature: its archives and names; digits are chords."""

import io
from pathlib import Path

import numpy as np
import soundfile
from downloads import make_tar

RATE_HZ = 8000
SPEAKERS = ("jackson", "nicolas", "theo")
INDICES = (*range(3), *range(5, 8), *range(10, 16))  # test, dev and train


def make_fsdd(folder: Path) -> Path:
    """Write `folder/{speaker}.tar.gz`: per digit a dozen clips of 0.3 to 0.5 s.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for voice, speaker in enumerate(SPEAKERS):
        clips = {
            f"{digit}_{speaker}_{index}.wav": _clip(generator, 110 + 30 * voice, digit)
            for digit in range(10)
            for index in INDICES
        }
        make_tar(folder / f"{speaker}.tar.gz", clips)
    return folder


def _clip(generator: np.random.Generator, pitch_hz: float, digit: int) -> bytes:
    time_s = np.arange(generator.integers(0.3 * RATE_HZ, 0.5 * RATE_HZ)) / RATE_HZ
    tones = [np.sin(2 * np.pi * hz * time_s) for hz in (pitch_hz, 300 * 1.25**digit)]
    samples = 0.2 * sum(tones) + generator.normal(0, 0.01, len(time_s))
    stream = io.BytesIO()
    soundfile.write(stream, samples, RATE_HZ, format="WAV", subtype="PCM_16")
    return stream.getvalue()
