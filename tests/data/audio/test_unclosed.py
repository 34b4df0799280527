"""Files that their writer never closed: their header declares no samples."""

import io
import struct

import numpy as np
import pytest
import soundfile
from cases import cases
from media_files import assert_unreadable, speechlike

from espnet_medusa.data.audio.reader import probe_audio, read_audio

SOUND = speechlike(1.0)


def encode(kind: str, subtype: str | None = None, sound=SOUND) -> bytearray:
    stream = io.BytesIO()
    soundfile.write(stream, sound, 16000, format=kind, subtype=subtype)
    return bytearray(stream.getvalue())


def wav(riff: int | None, data: int | None, kind: str = "WAV", subtype: str = "PCM_16"):
    """Encode WAV with other sizes in its header; None: the right one."""
    content = encode(kind, subtype)
    order = ">" if content[:4] == b"RIFX" else "<"
    place = content.index(b"data") + 4
    for at, size in ((4, riff), (place, data)):
        if size is not None:
            content[at : at + 4] = struct.pack(order + "I", size)
    return content


def without_sizes(kind: str, *places: tuple[int, int]) -> bytearray:
    content = encode(kind)
    for start, length in places:
        content[start : start + length] = bytes(length)
    return content


WARNED = (
    *(wav(riff, 0) for riff in (0, 36, None, 0xFFFFFFFF)),
    wav(0, 0, "WAV", "FLOAT"),
    wav(0, 0, "WAVEX", "PCM_24"),
    without_sizes("RF64", (20, 24)),
    without_sizes("AU", (8, 4)),
)
QUIET = (
    wav(0, None),
    wav(0, 0xFFFFFFFF),
    without_sizes("AIFF", (4, 4), (22, 4)),
    without_sizes("W64", (16, 8)),
    without_sizes("VOC", (27, 3)),
)


@cases(*((content, True) for content in WARNED), *((content, False) for content in QUIET))
def test_all_samples_are_read(content, warned, tmp_path, caplog):
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    samples, rate_hz = read_audio(str(path))
    assert rate_hz == 16000
    np.testing.assert_allclose(samples, SOUND, atol=1e-4)
    messages = [f"{path}: its header has no length, it was never closed; all 1.00 s are read"]
    assert caplog.messages == (messages if warned else [])
    assert probe_audio(str(path)).duration_s == pytest.approx(1.0, abs=0.01)
    part, _ = read_audio(str(path), start_s=0.25, end_s=0.5)
    np.testing.assert_array_equal(part, samples[4000:8000])


def test_pipes_and_compressed_samples(tmp_path):
    (tmp_path / "a.wav").write_bytes(wav(0, 0))
    samples, _ = read_audio(f"cat {tmp_path}/a.wav |", allow_pipes=True)
    np.testing.assert_allclose(samples, SOUND, atol=1e-4)
    for subtype in ("GSM610", "IMA_ADPCM", "ULAW"):
        (tmp_path / "a.wav").write_bytes(wav(0, 0, "WAV", subtype))
        assert len(read_audio(str(tmp_path / "a.wav"))[0]) == pytest.approx(16000, abs=400)


def test_files_without_samples_have_zero_length(tmp_path):
    """An empty file that was closed may have other chunks after its empty one."""
    closed = encode("WAV", sound=np.zeros(0))
    tagged = closed + b"LIST" + struct.pack("<I", 4) + b"INFO"
    for content in (closed, tagged, encode("AU", sound=np.zeros(0))):
        (tmp_path / "a.wav").write_bytes(content)
        assert len(read_audio(str(tmp_path / "a.wav"))[0]) == 0
    (tmp_path / "a.wav").write_bytes(wav(None, None)[:-400])
    assert_unreadable("declares 400 bytes more", tmp_path / "a.wav")
