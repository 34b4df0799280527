"""WAV files, and the comparison of decoded samples for all audio readers."""

import io
import struct

import numpy as np
import soundfile

from espnet_medusa.audio.reader import read_audio
from fuzz.reader import MEGABYTE, Reader, write_scratch

MAX_DURATION_S = 60.0
RATE_HZ = 8000
HEADER = struct.Struct("<4sI8sIHHIIHH4sI")


def tone(samples: int = 40, channels: int = 1) -> np.ndarray:
    """Return samples (samples, channels) in [-1, 1]."""
    times = np.arange(samples)[:, None] * (1 + np.arange(channels))
    return 0.5 * np.sin(0.3 * times)


def read_sound(entry: str, data: bytes) -> None:
    """Read audio and compare 16-bit PCM with an independent reader."""
    samples, rate_hz = read_audio(entry, max_duration_s=MAX_DURATION_S)
    assert samples.dtype == np.float32 and samples.ndim == 1 and rate_hz > 0
    assert len(samples) <= round(MAX_DURATION_S * rate_hz)
    expected = pcm16(data)
    if expected is not None and expected[1] == rate_hz:
        assert len(expected[0]) == len(samples)
        np.testing.assert_allclose(samples, expected[0], atol=1e-4)


def pcm16(data: bytes) -> tuple[np.ndarray, int] | None:
    """Return the mean of the channels (N,) and the rate of 16-bit PCM WAV, else None."""
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


def read(data: bytes) -> None:
    """Read a file by its path."""
    read_sound(str(write_scratch("sound.wav", data)), data)


def seeds() -> list[bytes]:
    """Return files of several encodings, with one and three channels."""
    return [
        encode("WAV", subtype, channels)
        for subtype in ("PCM_16", "PCM_24", "FLOAT", "ALAW", "IMA_ADPCM", "GSM610")
        for channels in (1, 3)
        if channels == 1 or subtype in ("PCM_16", "FLOAT")
    ]


def encode(container: str, subtype: str | None, channels: int = 1) -> bytes:
    """Return an audio file of a tone."""
    stream = io.BytesIO()
    soundfile.write(stream, tone(channels=channels), RATE_HZ, subtype, format=container)
    return stream.getvalue()


WORDS = (
    b"RIFF",
    b"RIFX",
    b"WAVE",
    b"fmt ",
    b"data",
    b"fact",
    b"LIST",
    b"\xff\xff\xff\x7f",
    b"\xfe\xff",
)
READER = Reader("wav_header", read, seeds, WORDS, room_bytes=256 * MEGABYTE, max_bytes=1024)
