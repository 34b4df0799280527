"""What audio readers have in common: how samples are held against the file."""

import io
import struct
import wave

import numpy as np

from espnet_medusa.audio.reader import read_audio

MAX_DURATION_S = 60.0
RATE_HZ = 8000


def tone(samples: int = 40, channels: int = 1) -> np.ndarray:
    """Samples (samples, channels) in [-1, 1]."""
    times = np.arange(samples)[:, None] * (1 + np.arange(channels))
    return 0.5 * np.sin(0.3 * times)


def read_sound(entry: str, data: bytes) -> None:
    """Read, and compare 16-bit PCM with what Python's ``wave`` reads."""
    samples, rate_hz = read_audio(entry, max_duration_s=MAX_DURATION_S)
    assert samples.dtype == np.float32 and samples.ndim == 1 and rate_hz > 0
    assert len(samples) <= round(MAX_DURATION_S * rate_hz)
    expected = pcm16(data)
    if expected is not None and expected[1] == rate_hz:
        assert len(expected[0]) == len(samples)
        np.testing.assert_allclose(samples, expected[0], atol=1e-4)


def pcm16(data: bytes) -> tuple[np.ndarray, int] | None:
    """Mean of the channels (N,) and rate of a plain WAV file of 16 bits; None of another."""
    if data[20:22] != b"\x01\0" or len(data) < 44 or data[36:40] != b"data":
        return None
    try:
        with wave.open(io.BytesIO(data)) as file:
            form = file.getparams()
            frames = file.readframes(form.nframes)
    except (wave.Error, EOFError, struct.error):
        return None
    size = form.sampwidth * form.nchannels
    if form.sampwidth != 2 or data[32:34] != struct.pack("<H", size) or len(frames) % size:
        return None
    values = np.frombuffer(frames, "<i2").reshape(-1, form.nchannels) / 32768
    return values.mean(axis=1), form.framerate
