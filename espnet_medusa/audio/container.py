"""Checks that audio libraries do not make: missing bytes in containers, and unreadable codecs.

libsndfile silently shortens a truncated WAV, SPHERE, AIFF, AU or Ogg file, FFmpeg an AVI or ASF
file. Therefore the sizes in the headers are compared with the size of the file.
"""

import math
import re
import struct
from typing import BinaryIO

from espnet_medusa.audio.source import COPY_AGAIN

# Writers that cannot seek back (sox, ffmpeg in pipes) leave sizes of this order in the header.
STREAMED_SIZE = 0x7FFF0000
NIST_HEADER_BYTES = 1024
OGG_PAGE_MAX_BYTES = 65307
COMPRESSED_SPHERE = re.compile(rb"sample_coding.*(shorten|wavpack|shortpack)")
MPEG_FRAME_SAMPLES = 1152
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
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        expected_end = _end_of_chunk(stream, size_bytes, b"data", "<")
    elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        (length,) = struct.unpack("<I", head[4:8])
        expected_end = 8 + length if length < STREAMED_SIZE else 0
    elif head[:16] == ASF:
        # The file size in the file properties (ASF specification 01.20.05, 3.2).
        place = head.find(ASF_FILE_PROPERTIES) + 40
        expected_end = int.from_bytes(head[place : place + 8], "little") if place >= 40 else 0
    elif head[:4] == b"FORM" and head[8:11] == b"AIF":
        expected_end = _end_of_chunk(stream, size_bytes, b"SSND", ">")
    elif head[:4] == b".snd" and len(head) >= 12:
        offset, length = struct.unpack(">II", head[4:12])
        expected_end = offset + length if length < STREAMED_SIZE else 0
    elif head[:7] == b"NIST_1A":
        expected_end = _end_of_nist(head)
    elif head[:4] == b"OggS":
        expected_end = _end_of_last_ogg_page(stream, size_bytes)
    return max(0, expected_end - size_bytes)


def _end_of_chunk(stream: BinaryIO, size_bytes: int, name: bytes, order: str) -> int:
    """Find the end of the sample data among the chunks of a RIFF or AIFF file; 0 without any."""
    position = 12
    while position + 8 <= size_bytes:
        stream.seek(position)
        chunk, length = struct.unpack(order + "4sI", stream.read(8))
        if chunk == name:
            return position + 8 + length if length < STREAMED_SIZE else 0
        position += 8 + length + length % 2
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


def frame_count_tolerance(stream: BinaryIO, format_name: str) -> float:
    """Return how many frames may be missing compared with libsndfile's frame count.

    MP3 encoders count their padding in different ways, up to one MPEG frame. Without a Xing or
    Info header, libsndfile estimates the count from the file size, so any number may be missing.
    """
    if format_name != "MP3":
        return 0
    stream.seek(0)
    head = stream.read(10)
    start = 0
    if head[:3] == b"ID3" and len(head) == 10:
        start = 10 + sum(byte << shift for byte, shift in zip(head[6:10], ID3_SHIFTS, strict=True))
    stream.seek(start)
    first_frame = stream.read(200)
    return MPEG_FRAME_SAMPLES if b"Xing" in first_frame or b"Info" in first_frame else math.inf


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
