"""Containers and codecs that FFmpeg reads, and files that must never be opened by it."""

import av
import numpy as np
import pytest
from cases import cases
from media_files import assert_unreadable
from timed_media import write_timed

from espnet_medusa.data.audio.media_file import FORMATS
from espnet_medusa.data.audio.reader import read_audio
from espnet_medusa.transcription.audio_suffixes import SUFFIXES

# Suffixes of FFmpeg's containers whose files are pictures, subtitles, manifests or programs.
NO_SOUND = {"avif", "heic", "heif", "mj2", "mks", "ism", "dif", "iamf", "swf"}


@cases(
    ("mp3.wav", "mp3", 48000), ("g726.wav", "g726", 8000), ("ac3.wav", "ac3", 48000),
    ("g722.wav", "g722", 16000), ("a.w64", "mp3", 48000), ("a.au", "adpcm_g722", 16000),
    ("a.eac3", "eac3", 48000), ("a.ac3", "ac3", 48000), ("a.rm", "ac3", 48000),
    ("real.rm", "real_144", 8000), ("a.nut", "mp3", 48000), ("a.mxf", "pcm_s16le", 48000),
    ("a.mp2", "mp2", 48000), ("a.ts", "mp2", 48000), ("a.tta", "tta", 48000),
    ("a.3g2", "aac", 48000), ("a.ogv", "libopus", 48000), ("a.adx", "adpcm_adx", 48000),
    ("a.wtv", "mp2", 48000), ("a.sox", "pcm_s32le", 48000), ("a.rso", "pcm_u8", 48000),
    ("a.amr", "libopencore_amrnb", 8000), ("a.spdif", "ac3", 48000), ("a.latm", "aac", 48000),
    ("a.vob", "ac3", 48000), ("a.g722", "g722", 16000), ("a.wv", "wavpack", 48000),
)  # fmt: skip
def test_sound_is_read(name, codec, rate_hz, tmp_path):
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV has no {codec}, to write the file")
    path = tmp_path / name
    container = {"a.mxf": "mxf_opatom", "a.latm": "latm", "a.spdif": "spdif"}.get(name)
    sound = write_timed(path, codec, rate_hz, container=container)
    samples, read_hz = read_audio(str(path))
    assert read_hz == rate_hz and len(samples) / rate_hz == pytest.approx(2.0, abs=0.15)
    margin = rate_hz // 10
    inner = sound[margin : -4 * margin]
    padded = np.pad(samples, margin)[: len(inner) + 3 * margin]
    delay = int(np.argmax(np.correlate(padded, inner, mode="valid")))
    correlation = np.corrcoef(padded[delay : delay + len(inner)], inner)[0, 1]
    assert correlation > (0.4 if codec in ("real_144", "libopencore_amrnb") else 0.95)
    assert name[name.index(".") :] in SUFFIXES


def test_suffixes_are_those_of_the_containers():
    for name in FORMATS.split(","):
        for suffix in av.format.ContainerFormat(name, "r").extensions:
            assert f".{suffix}" in SUFFIXES or suffix in NO_SOUND, (name, suffix)


@cases(
    ("a.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\na.ts\n#EXT-X-ENDLIST\n"),
    ("a.sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=a\nc=IN IP4 127.0.0.1\nm=audio 5004 RTP/AVP 0\n"),
    ("a.ffconcat", "ffconcat version 1.0\nfile a.ts\n"), ("a.ram", "rtsp://127.0.0.1/a.rm\n"),
    ("a.asx", '<asx version="3"><ref href="http://127.0.0.1/a"/></asx>'),
    ("a.wma", "[Reference]\nRef1=http://127.0.0.1/a\n"), ("a.ts", "const a: number = 1;\n" * 99),
    ("a.dash", '<?xml version="1.0"?><MPD><Period><BaseURL>a.ts</BaseURL></Period></MPD>'),
)  # fmt: skip
def test_files_that_name_other_files_are_not_opened(name, text, tmp_path):
    write_timed(tmp_path / "other.ts", "aac")
    (tmp_path / name).write_text(text.replace("a.ts", "other.ts"))
    assert_unreadable("is no audio that libsndfile or FFmpeg reads|is an HTML", tmp_path / name)


def test_excluded_containers():
    """They open other files or devices, or accept any content."""
    excluded = (
        "concat", "dash", "hls", "image2", "imf", "lavfi", "rtp", "rtsp", "sap", "sdp", "s16le",
        "tty", "vobsub", "webm_dash_manifest", "alsa", "srt", "ffmetadata", "aqtitle", "mpl2",
    )  # fmt: skip
    assert not {*excluded} & {*FORMATS.split(",")}
