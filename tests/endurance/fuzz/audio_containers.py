"""Audio formats other than WAV, read by libsndfile or FFmpeg."""

from media_files import speechlike, write_media

from fuzz.reader import MEGABYTE, Reader, scratch_folder, write_scratch
from fuzz.wav_header import encode, read_sound

SNDFILE = (
    ("AIFF", "PCM_16"), ("AU", "PCM_16"), ("NIST", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
    ("OGG", "OPUS"), ("W64", "PCM_16"), ("RF64", "PCM_16"), ("CAF", "PCM_16"), ("CAF", "ALAC_16"),
    ("VOC", "PCM_16"), ("MP3", "MPEG_LAYER_III"),
)  # fmt: skip
RATE_HZ = 48000
FFMPEG = (".mp4", ".mka", ".wma", ".flv", ".avi", ".aac")


def read(data: bytes) -> None:
    """Read a file by its path."""
    read_sound(str(write_scratch("sound", data)), data)


def seeds() -> list[bytes]:
    """Return one file of each format."""
    return [*(encode(*kind) for kind in SNDFILE), *map(ffmpeg, FFMPEG)]


def ffmpeg(suffix: str) -> bytes:
    """Return an FFmpeg file of noise."""
    samples = speechlike(0.05, RATE_HZ)
    return write_media(scratch_folder() / f"made{suffix}", samples, RATE_HZ).read_bytes()


WORDS = (
    b"FORM", b"AIFF", b"SSND", b"COMM", b".snd", b"NIST_1A", b"fLaC", b"OggS", b"caff", b"ID3",
    b"ftyp", b"moov", b"mdat", b"stsz", b"stco", b"AVI ", b"FLV", b"\x1aE\xdf\xa3", b"\xff\xfb",
)  # fmt: skip
READER = Reader("audio_containers", read, seeds, WORDS, 8192, 512 * MEGABYTE)
