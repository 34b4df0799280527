"""What audio readers have in common: how samples are held against the file."""

import struct

import numpy as np

from espnet_medusa.audio.reader import read_audio

MAX_DURATION_S = 60.0
RATE_HZ = 8000
HEADER = struct.Struct("<4sI8sIHHIIHH4sI")


def tone(samples: int = 40, channels: int = 1) -> np.ndarray:
    """Samples (samples, channels) in [-1, 1]."""
    times = np.arange(samples)[:, None] * (1 + np.arange(channels))
    return 0.5 * np.sin(0.3 * times)


def read_sound(entry: str, data: bytes) -> None:
    """Read, and compare 16-bit PCM with a reader by hand."""
    samples, rate_hz = read_audio(entry, max_duration_s=MAX_DURATION_S)
    assert samples.dtype == np.float32 and samples.ndim == 1 and rate_hz > 0
    assert len(samples) <= round(MAX_DURATION_S * rate_hz)
    expected = pcm16(data)
    if expected is not None and expected[1] == rate_hz:
        assert len(expected[0]) == len(samples)
        np.testing.assert_allclose(samples, expected[0], atol=1e-4)


def pcm16(data: bytes) -> tuple[np.ndarray, int] | None:
    """Mean of the channels (N,) and rate of a plain WAV file of 16 bits; None of another."""
    if len(data) < HEADER.size:
        return None
    riff, size, wave, length, kind, channels, rate_hz, _, block, bits, name, held = HEADER.unpack(
        data[: HEADER.size]
    )
    odd = (riff, wave, length, kind, bits, name) != (b"RIFF", b"WAVEfmt ", 16, 1, 16, b"data")
    if odd or (size, held) != (len(data) - 8, len(data) - HEADER.size):
        return None
    if not channels or block != 2 * channels or held % block:
        return None
    values = np.frombuffer(data, "<i2", offset=HEADER.size).reshape(-1, channels) / 32768
    return values.mean(axis=1), rate_hz
