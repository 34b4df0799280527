"""Audio files: WAV, archives, and the other formats of libsndfile and FFmpeg."""

import io
import struct

import numpy as np
import soundfile
from media_files import speechlike, write_media
from timed_media import write_timed

from espnet_medusa.data.audio.reader import read_audio
from espnet_medusa.data.audio.reading import TRANSCRIBING
from fuzz.reader import MEGABYTE, fuzzed, scratch_folder, write_scratch

MAX_DURATION_S = 60.0
RATE_HZ, FFMPEG_RATE_HZ = 8000, 48000
HEADER = struct.Struct("<4sI8sIHHIIHH4sI")
SNDFILE = (
    ("AIFF", "PCM_16"), ("AU", "PCM_16"), ("NIST", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
    ("OGG", "OPUS"), ("W64", "PCM_16"), ("RF64", "PCM_16"), ("CAF", "PCM_16"), ("CAF", "ALAC_16"),
    ("VOC", "PCM_16"), ("MP3", "MPEG_LAYER_III"),
)  # fmt: skip
WAV = (("PCM_16", 1), ("PCM_16", 3), ("PCM_24", 1), ("FLOAT", 1), ("FLOAT", 3), ("ALAW", 1),
       ("IMA_ADPCM", 1), ("GSM610", 1))  # fmt: skip
FFMPEG = (".mp4", ".mka", ".wma", ".flv", ".avi", ".aac")
TIMED = (("nut", "mp3"), ("rm", "ac3"), ("eac3", "eac3"), ("wav", "ac3"),
         ("tta", "tta"), ("mka", "pcm_s16le"))  # fmt: skip


def check_audio(entry: str, data: bytes) -> None:
    """Read audio and compare 16-bit PCM with an independent reader."""
    samples, rate_hz = read_audio(entry, max_duration_s=MAX_DURATION_S, reading=TRANSCRIBING)
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
    fields = HEADER.unpack(data[: HEADER.size])
    riff, size, wave, length, kind, channels, rate_hz, _, block, bits, name, data_bytes = fields
    odd = (riff, wave, length, kind, bits, name) != (b"RIFF", b"WAVEfmt ", 16, 1, 16, b"data")
    if odd or (size, data_bytes) != (len(data) - 8, len(data) - HEADER.size):
        return None
    if not channels or block != 2 * channels or data_bytes % block:
        return None
    values = np.frombuffer(data, "<i2", offset=HEADER.size).reshape(-1, channels) / 32768
    return values.mean(axis=1), rate_hz


def encode(container: str, subtype: str, channels: int = 1) -> bytes:
    tones = 0.5 * np.sin(0.3 * np.arange(40)[:, None] * (1 + np.arange(channels)))
    stream = io.BytesIO()
    soundfile.write(stream, tones, RATE_HZ, subtype, format=container)
    return stream.getvalue()


@fuzzed(
    seeds=lambda: [encode("WAV", *kind) for kind in WAV],
    words=(*b"RIFF,RIFX,WAVE,fmt ,data,fact,LIST".split(b","), b"\xff\xff\xff\x7f", b"\xfe\xff"),
    room_bytes=256 * MEGABYTE,
)
def wav_header(data: bytes) -> None:
    check_audio(str(write_scratch("sound.wav", data)), data)


def other_formats() -> list[bytes]:
    samples = speechlike(0.05, FFMPEG_RATE_HZ)
    paths = [scratch_folder() / f"made{suffix}" for suffix in FFMPEG]
    made = [write_media(path, samples, FFMPEG_RATE_HZ).read_bytes() for path in paths]
    for suffix, codec in TIMED:
        path = scratch_folder() / f"timed.{suffix}"
        write_timed(path, codec, FFMPEG_RATE_HZ, 0.05, start_s=0.5)
        made.append(path.read_bytes())
    return [*(encode(*kind) for kind in SNDFILE), *made]


@fuzzed(
    seeds=other_formats,
    words=(
        b"FORM", b"AIFF", b"SSND", b"COMM", b".snd", b"NIST_1A", b"fLaC", b"OggS", b"caff", b"ID3",
        b"ftyp", b"moov", b"mdat", b"stsz", b"stco", b"AVI ", b"FLV", b"\x1aE\xdf\xa3", b"\xff\xfb",
        b".RMF", b"TTA1", b"\x0b\x77", b"elst",
    ),
    max_bytes=8192,
    room_bytes=512 * MEGABYTE,
)  # fmt: skip
def audio_containers(data: bytes) -> None:
    check_audio(str(write_scratch("sound", data)), data)


def archives() -> list[bytes]:
    """Return inputs of ``ark``: an offset, then an archive as Kaldi or kaldiio writes it."""
    wav, flac = encode("WAV", "PCM_16"), encode("FLAC", "PCM_16")
    contents = [wav, wav + b"b " + wav, flac]
    contents.append(b"AUDIO\x04" + struct.pack("<I", len(flac)) + flac)
    contents.append(b"AUDIO\x08" + struct.pack("<Q", len(wav)) + wav)
    return [struct.pack("<H", 2) + b"a " + content for content in contents]


@fuzzed(
    seeds=archives,
    words=(b"AUDIO", b"RIFF", b"fLaC", b"\0BFM ", b"\xff" * 8),
    room_bytes=256 * MEGABYTE,
)
def ark(data: bytes) -> None:
    """Read an entry ``x.ark:offset``; the first two bytes of an input are the offset."""
    if len(data) >= 2:
        (offset,) = struct.unpack("<H", data[:2])
        path, entry = write_scratch("sound.ark", data[2:]), data[2 + offset :]
        check_audio(f"{path}:{offset}", entry if entry[:4] == b"RIFF" else b"")
