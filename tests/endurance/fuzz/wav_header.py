"""WAV files."""

import io

import soundfile

from fuzz.reader import MEGABYTE, Reader
from fuzz.scratch import write_scratch
from fuzz.sound import RATE_HZ, read_sound, tone


def read(data: bytes) -> None:
    """By path."""
    read_sound(str(write_scratch("sound.wav", data)), data)


def seeds() -> list[bytes]:
    """Of the encodings that libsndfile writes, of one channel and of three."""
    return [
        encode("WAV", subtype, channels)
        for subtype in ("PCM_16", "PCM_24", "FLOAT", "ALAW", "IMA_ADPCM", "GSM610")
        for channels in (1, 3)
        if channels == 1 or subtype in ("PCM_16", "FLOAT")
    ]


def encode(container: str, subtype: str | None, channels: int = 1) -> bytes:
    """A file of a tone."""
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
