"""Folders with broken files, which fail with a reason, and good files, which have a text."""

import json
import os

import numpy as np
import pytest
import soundfile
from experiment import read_lines
from media_files import BROKEN, write_broken, write_media
from recorded_calls import record_calls
from tones import chords, lay_out, say

from espnet_medusa.decoding.search.statistics import read_statistics
from espnet_medusa.transcription import recordings

pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")

ODD_NAMES = {  # id in tables to reason
    "line_break": r"line\nbreak.wav: the name has a line break",
    "?": r"\udcff.wav: the name has a line break or is not UTF-8",
    "fifo": "fifo.wav: is a device or a pipe",
    "loop": "loop.wav: cannot be read (Too many levels of symbolic links",
    "link": "link.wav: cannot be read (No such file",
}
UNOPENED = ("line\nbreak.wav", os.fsdecode(b"\xff.wav"))
UNPROBED = (*UNOPENED, "fifo.wav", "link.wav", "loop.wav", "empty.wav")
QUIET = ("silence", "noise", "music")
SPOKEN = ("talk", "film", "call")
FILTER = [
    "--vad_filter", "true", "--vad_parameters", "speech_pad_ms=100",
    "--vad_parameters", "threshold=0.6", "--output_format", "all",
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    texts = "turn left behind the wooden door", "seven boats are on the lake"
    spoken, _ = lay_out([say(text) for text in texts], [1.0, 3.0, 1.0])
    soundfile.write(folder / "talk.flac", spoken, 16000)
    write_media(folder / "film.mp4", spoken, video_s=5.0)
    write_media(folder / "call.webm", np.repeat(spoken, 3), 48000)
    noise = 0.02 * np.random.default_rng(0).standard_normal(48000)
    soundfile.write(folder / "silence.wav", np.zeros(48000), 16000)
    soundfile.write(folder / "noise.wav", noise, 16000)
    write_media(folder / "music.m4a", chords(8.0))
    for kind in BROKEN:
        write_broken(folder, kind)
    for name in UNOPENED:
        (folder / name).touch()
    os.mkfifo(folder / "fifo.wav")
    (folder / "link.wav").symlink_to("nowhere")
    (folder / "loop.wav").symlink_to("loop.wav")
    return folder


@pytest.mark.parametrize("options", [FILTER, []], ids=["filter", "no filter"])
def test_broken_files_fail_and_good_files_have_texts(
    transcribe_folder, files, tmp_path, capsys, caplog, options
):
    assert transcribe_folder(files, "--on_bad_audio", "refuse", *options) == 3
    stderr, out = capsys.readouterr().err, tmp_path / "out"
    texts, failed = read_lines(out / "text"), read_lines(out / "failed_utterances")
    assert (texts.keys(), failed.keys()) == ({*QUIET, *SPOKEN}, {*BROKEN, *ODD_NAMES})
    assert all(reason in failed[key] for key, reason in ODD_NAMES.items())
    for kind, (suffix, _, reason) in BROKEN.items():
        assert failed[kind].startswith(f"{files / kind}{suffix}: ") and reason in failed[kind]
        assert stderr.count(f"failed: {failed[kind]}\n") == 1
    assert f"{len(texts)} of {len(failed) + len(texts)} files" in stderr
    assert all(texts[name] for name in SPOKEN)
    silent = [record.message for record in caplog.records if "no speech in" in record.message]
    assert len(silent) == (len(QUIET) if options else 0)
    statistics = read_statistics(out / "statistics.json")
    duration_s = soundfile.info(files / "talk.flac").duration
    assert statistics["talk"].audio_seconds == pytest.approx(duration_s, abs=0.02)
    if options:
        for name in QUIET:
            assert any(f"{files / name}." in line for line in silent)
            written = [(out / f"{name}{suffix}").read_text() for suffix in (".txt", ".srt", ".vtt")]
            assert [texts[name], *written] == ["", "", "", "WEBVTT\n\n"]
        for name in texts:
            segments = json.loads((out / f"{name}.json").read_text())["segments"]
            times = [(row["start"], row["end"]) for row in segments]
            assert bool(segments) == (name in SPOKEN) and times == sorted(times)


def test_a_header_is_read_once(transcribe_folder, files, monkeypatch):
    opened = record_calls(monkeypatch, recordings, "open_file", lambda path: path)
    probed = record_calls(monkeypatch, recordings, "probe_audio", lambda source, **_: source.name)
    assert transcribe_folder(files, "--on_bad_audio", "refuse") == 3
    probed_files = [path for path in files.iterdir() if path.name not in UNPROBED]
    assert sorted(probed) == sorted(map(str, probed_files))
    assert max(map(opened.count, probed)) == 2, "once for the header, once for the samples"
