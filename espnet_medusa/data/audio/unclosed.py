"""Files that their writer never closed, such as those of a recorder that crashed.

Their header declares no samples, although samples follow. libsndfile and FFmpeg read most formats
to the end of the file then, but not WAV, RF64 and AU.
"""

import io
from typing import BinaryIO

from espnet_medusa.data.audio.container import walk_chunks

UNKNOWN = b"\xff\xff\xff\xff"  # length of a stream, which is read to its end


def find_unwritten_length(stream: BinaryIO, size_bytes: int) -> tuple[int, bytes] | None:
    """Return place and value of the length that a header lacks; None for other files."""
    stream.seek(0)
    head = stream.read(48)
    if head[:4] == b".snd" and head[8:12] == bytes(4):
        return (8, UNKNOWN) if int.from_bytes(head[4:8], "big") < size_bytes else None
    if head[:4] not in (b"RIFF", b"RIFX", b"RF64") or head[8:12] != b"WAVE":
        return None
    order = ">" if head[:4] == b"RIFX" else "<"
    place = next(
        (at for name, at, _ in walk_chunks(stream, size_bytes, order) if name == b"data"), 0
    )
    length = stream.seek(place + 4) and stream.read(4)
    if not place or place + 8 >= size_bytes:
        return None
    if head[:4] == b"RF64":
        left = (size_bytes - place - 8).to_bytes(8, "little")
        return (28, left) if head[12:16] == b"ds64" and head[28:36] == bytes(8) else None
    if length != bytes(4) or _is_closed(stream, size_bytes, order, place):
        return None
    return place + 4, UNKNOWN


def _is_closed(stream: BinaryIO, size_bytes: int, order: str, place: int) -> bool:
    """Return whether other chunks, up to the end, follow an empty one; samples do not look so."""
    end = place + 8
    for name, start, length in walk_chunks(stream, size_bytes, order, end):
        if not all(32 <= byte < 127 for byte in name):
            return False
        end = start + 8 + length + length % 2
    return end >= size_bytes


class Patched(io.RawIOBase):
    """A stream with other bytes at one place."""

    def __init__(self, stream: BinaryIO, place: int, data: bytes):
        self.stream, self.place, self.data = stream, place, data

    def readinto(self, buffer) -> int:
        start = self.stream.tell()
        count = self.stream.readinto(buffer)
        first, last = max(start, self.place), min(start + count, self.place + len(self.data))
        if first < last:
            view = memoryview(buffer).cast("B")
            view[first - start : last - start] = self.data[first - self.place : last - self.place]
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.stream.seek(offset, whence)

    def tell(self) -> int:
        return self.stream.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.stream.close()
        super().close()
