import io
import struct

import kaldiio
import numpy as np
import pytest
import soundfile
from cases import cases, combinations
from media_files import assert_unreadable, speechlike, write_media
from refusals import allocates_less_than, assert_refused
from tones import peak_frequency_hz, tone

from espnet_medusa.data.audio import reader as audio
from espnet_medusa.data.audio.reader import (
    AudioError,
    check_audio,
    probe_audio,
    read_audio,
    resample,
)
from espnet_medusa.data.kaldi.table import read_table

NOISE = (0.1 * np.random.default_rng(0).standard_normal((8000, 2))).astype(np.float32)
UNREADABLE = "is no audio that libsndfile or FFmpeg reads"


def encode(
    name: str, subtype: str | None = None, samples=NOISE, rate_hz: int = 16000, endian=None
) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate_hz, format=name, subtype=subtype, endian=endian)
    return stream.getvalue()


@pytest.mark.parametrize("n_cut", [100, 3000])
@pytest.mark.parametrize(
    "format_name, subtype, endian",
    [
        (name, "PCM_16", None)
        for name in ("WAV", "WAVEX", "NIST", "AIFF", "AU", "RF64", "W64", "CAF", "VOC", "AVR")
    ]
    + [("WAV", "FLOAT", None), ("FLAC", None, None), ("OGG", "VORBIS", None), ("OGG", "OPUS", None)]
    + [("WAV", "PCM_16", "BIG"), ("AU", "PCM_16", "LITTLE")],
)
def test_truncated_files_are_refused_by_name(tmp_path, format_name, subtype, endian, n_cut):
    path, data = tmp_path / "cut.bin", encode(format_name, subtype, endian=endian)
    path.write_bytes(data)
    assert len(read_audio(str(path))[0]) == len(NOISE)
    path.write_bytes(data[:-n_cut])
    assert str(path) in assert_unreadable("truncated|damaged", path)


def without_length(data: bytes) -> bytes:
    """Remove the first frame of an MP3, which has the length."""
    return data[data.index(data[:2], 4) :]


SHORT, LONG = tone(440, 2.0), speechlike(6.0)


@cases(
    *(
        (encode(*kind, first) + encode(*kind, second), 8.0)
        for kind in (("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None))
        for first, second in ((SHORT, LONG), (LONG, SHORT))
    ),
    (without_length(encode("MP3", None, LONG)), 6.0),
    (without_length(encode("MP3", None, np.concatenate([0.01 * SHORT, LONG, SHORT]))), 10.0),
)
def test_whole_audio_is_read_where_the_header_has_no_or_a_shorter_length(
    content, seconds, tmp_path
):
    (tmp_path / "a.bin").write_bytes(content)
    samples, rate_hz = read_audio(str(tmp_path / "a.bin"))
    assert abs(len(samples) / rate_hz - seconds) < 0.3
    part, _ = read_audio(str(tmp_path / "a.bin"), start_s=1.0, end_s=seconds - 0.5)
    np.testing.assert_array_equal(part, samples[rate_hz : round((seconds - 0.5) * rate_hz)])
    assert_unreadable("lasts longer than the 3 s", tmp_path / "a.bin", max_duration_s=3)


@cases(
    (b"", "is an empty file"),
    (b"RIFF", UNREADABLE),
    (np.random.default_rng(1).bytes(5000), UNREADABLE),
    (b"Words of a user\n" * 100, UNREADABLE),
    (b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", UNREADABLE),
    (b"ffconcat version 1.0\nfile talk.m4a\n", UNREADABLE),
    (b"<!DOCTYPE html><html>404</html>", "HTML"),
    (b"\0\0\0\x20ftypM4A \0\0\0\0", "is a damaged or truncated MP4 file"),
    (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
)
@combinations(read=[probe_audio, read_audio], suffix=["wav", "mp4"])
def test_other_files_are_explained(content, message, tmp_path, read, suffix):
    write_media(tmp_path / "talk.m4a", speechlike(1.0))
    path = tmp_path / f"bad.{suffix}"
    path.write_bytes(content)
    line = assert_refused(f"^{path}: .*{message}", read, str(path), error=AudioError)
    assert "0x" not in line, "no address of a Python object"


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


SHORTENED = encode("NIST", "PCM_16").replace(b"s3 pcm", b"s26 pcm,embedded-shorten-v2.00")


def overwritten(data: bytes) -> bytes:
    return half(data) + np.random.default_rng(2).bytes(200) + data[len(data) // 2 + 200 :]


@cases(
    (half(encode("MP3", None, tone(440, 2.0))), r"truncated \(\d+ of 32000 samples\)"),
    (overwritten(encode("FLAC")), "corrupt"),
    (SHORTENED, "sph2pipe"),
    (half(SHORTENED), "sph2pipe"),  # fewer bytes than an uncompressed file
    ids=["MP3", "FLAC", "compressed", "compressed to half"],
)
def test_damaged_and_compressed_files_are_refused(content, message, tmp_path):
    (tmp_path / "a.bin").write_bytes(content)
    assert_unreadable(message, tmp_path / "a.bin")


@pytest.mark.parametrize(
    "entry",
    ["", "missing.wav", ".", "~/a.wav", "missing.ark:5", "| cat", "a\0.wav", "a\0.ark:1",
     "cat \0 |", "/dev/zero", f"missing.ark:{'9' * 20}", f"missing.ark:{'9' * 5000}",
     "missing.ark:\u0665"],
)  # fmt: skip
def test_bad_entries_are_audio_errors(entry):
    assert_unreadable("; ", entry, allow_pipes=True)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF])
def test_streamed_wav_header_is_not_truncation(tmp_path, size):
    data = bytearray(encode("WAV", "PCM_16"))
    place = data.find(b"data") + 4
    data[place : place + 4] = data[4:8] = struct.pack("<I", size)
    (tmp_path / "a.wav").write_bytes(data)
    assert len(read_audio(str(tmp_path / "a.wav"))[0]) == len(NOISE)


def flac_of_unknown_length() -> bytes:
    data = bytearray(encode("FLAC"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    return bytes(data)


@pytest.mark.parametrize("block_frames", [1 << 20, 8000, 4000, 999])
def test_flac_without_length_in_its_header(tmp_path, monkeypatch, block_frames):
    monkeypatch.setattr(audio, "BLOCK_VALUES", block_frames)
    data, path = flac_of_unknown_length(), tmp_path / "a.flac"
    path.write_bytes(data)
    assert probe_audio(str(path)).n_samples is None
    samples, _ = read_audio(str(path))
    np.testing.assert_allclose(samples, NOISE.mean(axis=1), atol=1e-4)
    assert_unreadable("lasts longer than the 0.4 s", path, max_duration_s=0.4)
    path.write_bytes(half(data))
    assert_unreadable("corrupt or truncated", path)


def test_arks_of_kaldiio_and_kaldi(tmp_path):
    mono = NOISE[:, 0]
    integers = (mono * 32768).astype(np.int16)
    for kind in ("plain", "flac", "wav"):
        ark, how, first = str(tmp_path / f"{kind}.ark"), {}, (16000, integers)
        if kind != "plain":
            how = {"write_function": "soundfile", "write_kwargs": {"format": kind}}
            first = (mono, 16000)
        part = tuple(one if isinstance(one, int) else one[:100] for one in first)
        kaldiio.save_ark(ark, {"a": first, "b": part}, scp=f"{ark}.scp", **how)
        entries = read_table(f"{ark}.scp")
        samples, rate_hz = read_audio(entries["a"])
        assert rate_hz == 16000 and len(read_audio(entries["b"])[0]) == 100
        np.testing.assert_allclose(samples, integers / 32768, atol=1e-4 if how else 1e-6)


def test_arks_of_features_cut_arks_and_wrong_offsets_are_refused(tmp_path):
    ark, flac = tmp_path / "a.ark", {"write_kwargs": {"format": "flac"}}
    kaldiio.save_ark(str(ark), {"a": np.zeros((3, 4), dtype=np.float32)})
    assert_unreadable("no wav or flac audio", f"{ark}:2")
    kaldiio.save_ark(str(ark), {"a": (NOISE, 16000)}, write_function="soundfile", **flac)
    assert_unreadable("at that offset", f"{ark}:3")
    ark.write_bytes(ark.read_bytes()[:-10])
    assert_unreadable("truncated", f"{ark}:2")


def test_wrong_offsets_and_lengths_allocate_no_memory(tmp_path):
    ark = tmp_path / "a.ark"
    ark.write_bytes(b"AUDIO\xff" + b"\xff" * 300)
    assert_unreadable("the ark is truncated", f"{ark}:0")
    with allocates_less_than(100_000_000):
        ark.write_bytes(b"AUDIO\x08" + struct.pack("<Q", 1 << 62) + bytes(9))
        assert_unreadable(f"{(1 << 62) - 9} of {1 << 62} bytes are missing", f"{ark}:0")
        ark.write_bytes(b"RIFF" + struct.pack("<I", 0xFFFFFFF0) + bytes(9))
        assert_unreadable("; ", f"{ark}:0")
        assert_unreadable("999999: ", f"{ark}:999999999999999999")


def test_audio_of_unknown_length_is_read_only_up_to_the_limit(tmp_path, monkeypatch):
    (tmp_path / "a.flac").write_bytes(flac_of_unknown_length())
    monkeypatch.setattr(audio, "BLOCK_VALUES", 400)
    blocks, read_block = [], audio._read_streamed_flac
    monkeypatch.setattr(audio, "_read_streamed_flac", lambda s: blocks.append(1) or read_block(s))
    assert_unreadable("lasts longer than the 0.1 s", tmp_path / "a.flac", max_duration_s=0.1)
    assert len(blocks) == 1600 // (400 // NOISE.shape[1]) + 1


def test_pipes_need_permission_and_must_succeed(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(encode("WAV", "PCM_16"))
    assert_unreadable("--allow_pipes true", f"touch {tmp_path}/ran; cat {path} |")
    assert not (tmp_path / "ran").exists()
    assert len(read_audio(f"cat {path} |", allow_pipes=True)[0]) == len(NOISE)
    for failing in (f"cat {path}; exit 3 |", f"(cat {path}; false) | cat |"):
        assert_unreadable("status", failing, allow_pipes=True)
    assert_unreadable("wrote nothing", "true |", allow_pipes=True)


def test_hour_long_audio_is_refused_from_its_header(tmp_path):
    path = tmp_path / "hour.wav"
    soundfile.write(path, np.zeros(1), 16000, subtype="PCM_16")
    n_bytes = 3600 * 16000 * 2
    with open(path, "r+b") as stream:  # A sparse file: long, but not large on disk.
        stream.seek(40)
        stream.write(struct.pack("<I", n_bytes))
        stream.truncate(44 + n_bytes)
    with allocates_less_than(1 << 20):
        assert_unreadable("lasts 3600.00 s, more than the 30 s", path, max_duration_s=30)
    assert probe_audio(str(path)).duration_s == 3600


@cases(
    (np.zeros(0, np.float32), {}, "zero length"),
    (np.zeros(1, np.float32), {"min_samples": 160}, "fewer than the 160"),
    (np.full(400, np.nan, np.float32), {}, "400 NaN"),
    (np.array([0, np.inf, 0], np.float32), {}, "1 NaN or infinite"),
    (np.full(400, 2e4, np.float32), {}, "amplitude"),
    (np.zeros(400, np.float32), {"expected_rate_hz": 8000}, "16000 Hz, the model expects 8000"),
    (np.zeros(16001, np.float32), {"max_duration_s": 1.0}, "lasts 1.00 s"),
    (np.zeros((400, 2), np.float32), {}, "shape"),
)
def test_check_audio_refuses_with_a_remedy(samples, options, message):
    with pytest.raises(AudioError, match=message) as caught:
        check_audio(samples, 16000, **options)
    assert caught.value.remedy and str(caught.value).endswith(f"; {caught.value.remedy}")
    # Silence and a full window are allowed.
    check_audio(np.zeros(480000, np.float32), 16000, 16000, max_duration_s=30.0, min_samples=160)


@pytest.mark.parametrize("from_hz, to_hz", [(8000, 16000), (22050, 16000), (44100, 16000)])
def test_resampling_keeps_pitch_and_level(from_hz, to_hz):
    samples = resample(tone(440, 1.0, from_hz), from_hz, to_hz)
    assert samples.dtype == np.float32 and len(samples) == to_hz
    assert abs(peak_frequency_hz(samples, to_hz) - 440) < 2
    assert abs(np.abs(samples[1000:-1000]).max() - 0.5) < 0.01


def test_resampling_high_frequencies_and_short_audio():
    assert np.abs(resample(tone(15000, 1.0, 48000), 48000, 16000)[1000:-1000]).max() < 1e-3
    for count in (0, 1):
        assert len(resample(np.zeros(count, np.float32), 8000, 16000)) == 2 * count


def chunk(name: bytes, content: bytes) -> bytes:
    """A chunk of a RIFF file, padded to an even length."""
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def among_other_chunks(wav: bytes) -> bytes:
    """Add chunks of odd length before and after the samples, as audio editors do."""
    place = wav.index(b"data")
    title = chunk(b"LIST", b"INFO" + chunk(b"INAM", b"some title"))
    body = wav[12:place] + chunk(b"bext", bytes(603)) + title + wav[place:] + chunk(b"id3 ", b"ID3")
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def after_a_tag(mp3: bytes) -> bytes:
    """Prefix an ID3v2 tag of 1000 bytes; its size is in base 128."""
    return b"ID3\4\0\0" + bytes([0, 0, *divmod(1000, 128)]) + bytes(1000) + mp3


@cases(
    ("WAV", "PCM_16", 22050, 1, among_other_chunks), ("WAV", "PCM_U8", 11025, 1, bytes),
    ("WAV", "ALAW", 8000, 1, among_other_chunks), ("WAV", "IMA_ADPCM", 16000, 1, bytes),
    ("WAV", "GSM610", 8000, 1, bytes), ("WAV", "DOUBLE", 48000, 2, bytes),
    ("WAV", "FLOAT", 16000, 2, bytes), ("AIFF", "PCM_24", 16000, 2, bytes),
    ("WAVEX", "PCM_24", 48000, 2, among_other_chunks), ("W64", "PCM_16", 16000, 2, bytes),
    ("RF64", "PCM_16", 16000, 1, bytes), ("NIST", "PCM_16", 8000, 2, bytes),
    ("NIST", "ULAW", 8000, 2, bytes), ("AU", "ULAW", 8000, 1, bytes),
    ("CAF", "PCM_16", 44100, 2, bytes), ("FLAC", "PCM_24", 44100, 2, bytes),
    ("MP3", None, 48000, 1, after_a_tag), ("MP3", None, 22050, 2, bytes),
    ("OGG", "OPUS", 8000, 2, bytes), ("OGG", "VORBIS", 44100, 2, bytes),
)  # fmt: skip
def test_odd_rates_codecs_and_containers(format_name, subtype, rate_hz, channels, wrap, tmp_path):
    mono = tone(440, 1.5, rate_hz)
    sound = mono[:, None] * ([1.0] if channels == 1 else [1.5, 0.5])
    path = tmp_path / "a.bin"
    path.write_bytes(wrap(encode(format_name, subtype, sound, rate_hz)))
    samples, found_hz = read_audio(str(path))
    check_audio(samples, found_hz, rate_hz, max_duration_s=30)
    assert samples.dtype == np.float32 and abs(len(samples) / found_hz - 1.5) < 0.05
    assert abs(peak_frequency_hz(samples, found_hz) - 440) < 2
    if subtype in ("PCM_16", "PCM_24", "FLOAT", "DOUBLE"):
        np.testing.assert_allclose(samples, mono, atol=1e-4)
    if format_name not in ("MP3", "OGG"):  # whose decoders restart after a seek
        part, _ = read_audio(str(path), start_s=0.5, end_s=1.0)
        np.testing.assert_array_equal(part, samples[rate_hz // 2 : rate_hz])
    assert abs(np.abs(samples[rate_hz // 4 : -rate_hz // 4]).max() - 0.5) < 0.05


def test_columns_of_wav_scp_are_channels_of_one_recording(tmp_path):
    channels = {"a b": tone(300, 0.2), "a": tone(300, 0.2), "b": 0.5 * tone(300, 0.2)}
    for name, samples in (channels | {"short": tone(300, 0.1)}).items():
        soundfile.write(tmp_path / f"{name}.wav", samples, 16000)
    entry = f"{tmp_path}/a.wav {tmp_path}/b.wav"
    samples, rate_hz = read_audio(entry)
    np.testing.assert_allclose(samples, 0.75 * channels["a"], atol=1e-3)
    assert rate_hz == 16000 and samples.dtype == np.float32
    assert probe_audio(entry).rate_hz == 16000
    # A file whose name has a blank is one column.
    assert len(read_audio(f"{tmp_path}/a b.wav")[0]) == len(channels["a"])
    assert_refused("differ in samples", read_audio, f"{tmp_path}/a.wav {tmp_path}/short.wav")
    assert_refused("gone.wav: cannot be read", read_audio, f"{tmp_path}/a.wav {tmp_path}/gone.wav")
