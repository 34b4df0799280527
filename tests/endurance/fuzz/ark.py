"""Audio archives, ``x.ark:offset``; the first two bytes of an input are the offset."""

import struct

from fuzz.reader import MEGABYTE, Reader, write_scratch
from fuzz.wav_header import encode, read_sound


def read(data: bytes) -> None:
    """Read one entry."""
    if len(data) < 2:
        return
    (offset,) = struct.unpack("<H", data[:2])
    archive = data[2:]
    path = write_scratch("sound.ark", archive)
    read_sound(f"{path}:{offset}", archive[offset:] if archive[offset:][:4] == b"RIFF" else b"")


def seeds() -> list[bytes]:
    """Return archives as Kaldi and kaldiio write them."""
    wav, flac = encode("WAV", "PCM_16"), encode("FLAC", "PCM_16")
    archives = [
        b"a " + wav,
        b"a " + wav + b"b " + wav,
        b"a " + flac,
        b"a AUDIO\x04" + struct.pack("<I", len(flac)) + flac,
        b"a AUDIO\x08" + struct.pack("<Q", len(wav)) + wav,
    ]
    return [struct.pack("<H", 2) + archive for archive in archives]


READER = Reader(
    "ark",
    read,
    seeds,
    (b"AUDIO", b"RIFF", b"fLaC", b"\0BFM ", b"\xff" * 8),
    room_bytes=256 * MEGABYTE,
    max_bytes=1024,
)
