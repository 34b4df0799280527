"""Colored noise at a given level below the speech."""

import math

import numpy as np


def coloured_noise(n_samples: int, exponent: float, generator: np.random.Generator) -> np.ndarray:
    """Return Gaussian noise of unit power with a power density of ``1 / f ** exponent``.

    Args:
        exponent: 0 is white noise, 1 pink noise.

    Returns:
        Samples (float32, shape (n_samples,)).
    """
    # Transforms of a length with a large prime factor are several times slower.
    n_transformed = math.ceil(n_samples / 4096) * 4096
    spectrum = np.fft.rfft(generator.standard_normal(n_transformed, dtype=np.float32))
    # Index 0 is 0 Hz: no constant offset.
    spectrum[0] = 0
    frequencies = np.arange(1, len(spectrum), dtype=np.float32)
    spectrum[1:] *= frequencies ** np.float32(-exponent / 2)
    noise = np.fft.irfft(spectrum, n_transformed)[:n_samples]
    return (noise / np.sqrt(np.mean(noise**2))).astype(np.float32)


def add_noise(
    speech: np.ndarray, snr_db: float, exponent: float, generator: np.random.Generator
) -> np.ndarray:
    """Add noise that is ``snr_db`` decibels below the speech's mean power.

    Args:
        speech: samples, shape (N,).
        snr_db: signal-to-noise ratio over the whole signal.
        exponent: colour of the noise, see :func:`coloured_noise`.

    Returns:
        Samples (float32, shape (N,)).
    """
    level = np.sqrt(np.mean(speech.astype(np.float64) ** 2)) * 10 ** (-snr_db / 20)
    noise = coloured_noise(len(speech), exponent, generator)
    return (speech + level * noise).astype(np.float32)


def set_level(samples: np.ndarray, level_db: float, peak: float = 0.95) -> np.ndarray:
    """Scale to a mean level, or less if the largest sample would exceed ``peak``.

    Args:
        samples: shape (N,), not all zero.
        level_db: root mean square, dB re full scale.
        peak: highest magnitude allowed, so that nothing is clipped.

    Returns:
        Samples (float32, shape (N,)).
    """
    gain = 10 ** (level_db / 20) / np.sqrt(np.mean(samples.astype(np.float64) ** 2))
    gain = min(gain, peak / np.abs(samples).max())
    return (samples * gain).astype(np.float32)
