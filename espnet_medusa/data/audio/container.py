"""Checks that audio libraries do not make: missing bytes in containers, and unreadable codecs.

libsndfile silently shortens a truncated WAV, SPHERE, AIFF, AU or Ogg file, FFmpeg an AVI or ASF
file. Therefore the sizes in the headers are compared with the size of the file. Headers of IRCAM
and PAF files have no sizes.
"""

import math
import re
import struct
from collections.abc import Iterator
from typing import BinaryIO

from espnet_medusa.data.audio.source import COPY_AGAIN

# Writers that cannot seek back (sox, ffmpeg in pipes) leave sizes of this order in the header.
STREAMED_SIZE = 0x7FFF0000
NIST_HEADER_BYTES = 1024
OGG_PAGE_MAX_BYTES = 65307
COMPRESSED_SPHERE = re.compile(rb"sample_coding.*(shorten|wavpack|shortpack)")
MP3_FRAME_SAMPLES = 1152  # encoders count their padding differently, up to one frame
MP3_TAGS, MP3_TAG_BYTES = (b"TAG", b"APETAG", b"LYRICS"), 128  # after the last frame
ID3_SHIFTS = (21, 14, 7, 0)
ASF = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
ASF_FILE_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
MEDIA = (
    (4, b"ftyp", "MP4"),
    (0, b"\x1aE\xdf\xa3", "Matroska or WebM"),
    (0, ASF, "ASF (WMA)"),
    (0, b"wvpk", "WavPack"),
)


def missing_bytes(stream: BinaryIO, size_bytes: int) -> int:
    """Return how many bytes a file lacks compared with the size in its header.

    0 if the file is complete, streamed or of an unknown format.
    """
    stream.seek(0)
    head = stream.read(NIST_HEADER_BYTES)
    expected_end = 0
    if head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:12] == b"WAVE":
        order = ">" if head[:4] == b"RIFX" else "<"
        # The size of the data in RF64's chunk `ds64` (EBU Tech 3306, 3.5).
        length = int.from_bytes(head[28:36], "little") if head[:4] == b"RF64" else None
        expected_end = _end_of_chunk(stream, size_bytes, b"data", order, length)
    elif head[:4] == b"riff" and head[24:28] == b"wave":  # Sony Wave64: GUIDs, then sizes
        expected_end = int.from_bytes(head[16:24], "little")
    elif head[:4] == b"caff":
        expected_end = _end_of_caf(stream, size_bytes)
    elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        (length,) = struct.unpack("<I", head[4:8])
        expected_end = 8 + length if length < STREAMED_SIZE else 0
    elif head[:16] == ASF:
        # The file size in the file properties (ASF specification 01.20.05, 3.2).
        place = head.find(ASF_FILE_PROPERTIES) + 40
        expected_end = int.from_bytes(head[place : place + 8], "little") if place >= 40 else 0
    elif head[:4] == b"FORM" and head[8:11] == b"AIF":
        expected_end = _end_of_chunk(stream, size_bytes, b"SSND", ">")
    elif head[:4] == b"FORM" and head[8:12] in (b"8SVX", b"16SV"):
        expected_end = _end_of_chunk(stream, size_bytes, b"BODY", ">")
    elif head[:4] in (b".snd", b"dns.") and len(head) >= 12:
        offset, length = struct.unpack(">II" if head[:1] == b"." else "<II", head[4:12])
        expected_end = offset + length if length < STREAMED_SIZE else 0
    elif head[:19] == b"Creative Voice File" and len(head) >= 30:
        start = int.from_bytes(head[20:22], "little")  # of a block: type, 3 bytes of length, data
        expected_end = start + 4 + int.from_bytes(head[start + 1 : start + 4], "little")
    elif head[:4] == b"2BIT" and len(head) >= 30:  # AVR
        stereo, bits, frames = struct.unpack(">12x?xH10xI", head[:30])
        expected_end = 128 + frames * (1 + stereo) * bits // 8
    elif head[:7] == b"NIST_1A":
        expected_end = _end_of_nist(head)
    elif head[:4] == b"OggS":
        expected_end = _end_of_last_ogg_page(stream, size_bytes)
    return max(0, expected_end - size_bytes)


def _end_of_chunk(
    stream: BinaryIO, size_bytes: int, name: bytes, order: str, long_length: int | None = None
) -> int:
    """Find the end of the sample data among the chunks of a RIFF or AIFF file; 0 without any.

    ``long_length`` is its length, if the chunk cannot contain it.
    """
    for chunk, position, length in walk_chunks(stream, size_bytes, order):
        if chunk == name:
            if long_length is not None and length >= STREAMED_SIZE:
                return position + 8 + long_length
            return position + 8 + length if length < STREAMED_SIZE else 0
    return 0


def walk_chunks(
    stream: BinaryIO, size_bytes: int, order: str, position: int = 12
) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, position and declared length of the chunks of a RIFF or AIFF file."""
    while position + 8 <= size_bytes:
        stream.seek(position)
        name, length = struct.unpack(order + "4sI", stream.read(8))
        yield name, position, length
        position += 8 + length + length % 2


def _end_of_caf(stream: BinaryIO, size_bytes: int) -> int:
    """Find the end of the chunk ``data`` of a Core Audio file; 0 without any, or if streamed."""
    position = 8
    while position + 12 <= size_bytes:
        stream.seek(position)
        chunk, length = struct.unpack(">4sq", stream.read(12))
        if chunk == b"data" or length < 0:
            return position + 12 + length if length >= 0 else 0
        position += 12 + length
    return 0


def _end_of_nist(head: bytes) -> int:
    """Compute the end of the samples from a SPHERE header; 0 if compressed or without counts."""
    if COMPRESSED_SPHERE.search(head):
        return 0
    keys = (b"sample_count", b"sample_n_bytes", b"channel_count")
    counts = [re.search(rb"^" + key + rb" -i (\d+)", head, re.MULTILINE) for key in keys]
    if None in counts:
        return 0
    start = re.match(rb"NIST_1A\n\s*(\d+)", head)
    header_bytes = int(start.group(1)) if start else NIST_HEADER_BYTES
    return header_bytes + math.prod(int(count[1]) for count in counts)


def _end_of_last_ogg_page(stream: BinaryIO, size_bytes: int) -> int:
    """Compute the end of the last Ogg page from its header (RFC 3533, section 6)."""
    start = max(0, size_bytes - OGG_PAGE_MAX_BYTES)
    stream.seek(start)
    tail = stream.read()
    page = tail.rfind(b"OggS\0")
    if page < 0:
        return 0
    if len(tail) < page + 27 or len(tail) < page + 27 + tail[page + 26]:
        return size_bytes + 1
    n_segments = tail[page + 26]
    lengths = tail[page + 27 : page + 27 + n_segments]
    return start + page + 27 + n_segments + sum(lengths)


def may_be_longer(stream: BinaryIO, size_bytes: int, format_name: str) -> bool:
    """Return whether a file may contain more audio than libsndfile reads from it.

    libsndfile reads only the first of several Ogg or MP3 files in one, and estimates the length of
    an MP3 without the header Xing or Info from the bit rate of its first frame.
    """
    stream.seek(0)
    if format_name == "OGG":
        return _is_chained_ogg(stream, size_bytes)
    if format_name != "MP3":
        return False
    head, start = stream.read(10), 0
    if head[:3] == b"ID3" and len(head) == 10:
        start = 10 + sum(byte << shift for byte, shift in zip(head[6:10], ID3_SHIFTS, strict=True))
    stream.seek(start)
    header = re.search(rb"(?:Xing|Info)(.{12})", stream.read(200), re.DOTALL)
    if header is None:
        return True
    flags, *fields = struct.unpack(">III", header[1])
    if not flags & 2:
        return True
    end = start + fields[flags & 1]
    stream.seek(end)
    return size_bytes - end > MP3_TAG_BYTES and not stream.read(8).startswith(MP3_TAGS)


def _is_chained_ogg(stream: BinaryIO, size_bytes: int) -> bool:
    """Return whether a logical stream begins after data of another one (RFC 3533, section 4)."""
    position, has_data = 0, False
    while position + 27 <= size_bytes:
        stream.seek(position)
        page = stream.read(27)
        if page[:4] != b"OggS":
            return False
        begins = bool(page[5] & 2)
        if begins and has_data:
            return True
        has_data = has_data or not begins
        position += 27 + page[26] + sum(stream.read(page[26]))
    return False


def explain_unreadable(head: bytes) -> tuple[str, str] | None:
    """Return description and remedy of an unreadable file from its first kilobyte, or None."""
    if head[:7] == b"NIST_1A" and COMPRESSED_SPHERE.search(head):
        return "is a compressed SPHERE file", "decompress it: sph2pipe -f wav IN.sph OUT.wav"
    for place, magic, name in MEDIA:
        if head[place : place + len(magic)] == magic:
            return f"is a damaged or truncated {name} file", COPY_AGAIN
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the audio", "fetch the audio: git lfs pull"
    if head.lstrip()[:1] == b"<":
        return "is an HTML or XML page, not audio", "download the file again"
    return None
