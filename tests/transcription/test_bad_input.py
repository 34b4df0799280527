"""Folders with broken files, which fail with a reason, and good files, which have a text."""

import functools
import json

import numpy as np
import pytest
import soundfile
from experiment import read_lines
from media_files import BROKEN, write_broken, write_media
from tones import chords, lay_out, say

from espnet_medusa.audio import reader
from espnet_medusa.search.statistics import read_statistics
from espnet_medusa.transcription import recordings

pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")

QUIET = ("silence", "noise", "music")
SPOKEN = ("talk", "film", "call")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with one file of each kind, good and broken."""
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
    return folder


@pytest.fixture
def run(transcribe_folder, files):
    """Function that transcribes the files and returns the exit status."""
    return functools.partial(transcribe_folder, files)


def assert_failures(folder, files, stderr):
    failed = read_lines(folder / "failed_utterances")
    assert failed.keys() == BROKEN.keys()
    for kind, (suffix, _, reason) in BROKEN.items():
        assert failed[kind].startswith(f"{files / kind}{suffix}: ") and reason in failed[kind]
        assert stderr.count(f"failed: {failed[kind]}\n") == 1


@pytest.mark.parametrize("options", [["--vad_filter", "true"], []])
def test_broken_files_fail_and_good_files_have_texts(run, files, tmp_path, capsys, caplog, options):
    assert run(*options) == 3
    stderr, out = capsys.readouterr().err, tmp_path / "out"
    texts = read_lines(out / "text")
    assert texts.keys() == {*QUIET, *SPOKEN}, "good files"
    assert_failures(out, files, stderr)
    total = len(BROKEN) + len(texts)
    assert f"{len(texts)} of {total} files" in stderr
    assert all(texts[name] for name in SPOKEN)
    silent = [record.message for record in caplog.records if "no speech in" in record.message]
    assert len(silent) == (len(QUIET) if options else 0)
    if options:
        assert all(texts[name] == "" and (out / f"{name}.txt").read_text() == "" for name in QUIET)
        assert all(any(f"{files / name}." in line for line in silent) for name in QUIET)
    statistics = read_statistics(out / "statistics.json")
    assert statistics["talk"].audio_seconds == pytest.approx(
        soundfile.info(files / "talk.flac").duration, abs=0.02
    )


def test_files_without_speech_have_no_segments(run, files, tmp_path):
    parameters = ["--vad_parameters", "speech_pad_ms=100", "--vad_parameters", "threshold=0.6"]
    assert run("--vad_filter", "true", "--output_format", "all", *parameters) == 3
    for name in (*QUIET, *SPOKEN):
        result = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert bool(result["segments"]) == (name in SPOKEN)
        times = [(row["start"], row["end"]) for row in result["segments"]]
        assert times == sorted(times)
    assert (tmp_path / "out" / "music.srt").read_text() == ""
    assert (tmp_path / "out" / "music.vtt").read_text() == "WEBVTT\n\n"


def test_a_header_is_read_once(run, files, tmp_path, monkeypatch):
    probed, opened = [], []
    probe, open_source = reader.probe_audio, reader.open_source
    monkeypatch.setattr(
        reader, "open_source", lambda path, *more: opened.append(path) or open_source(path, *more)
    )
    monkeypatch.setattr(recordings, "probe_audio", lambda path: probed.append(path) or probe(path))
    assert run() == 3
    assert sorted(probed) == sorted(map(str, files.iterdir()))
    assert max(map(opened.count, probed)) == 2, "once for the header, once for the samples"


def test_an_unknown_parameter_is_one_line(run, capsys):
    assert run("--vad_filter", "true", "--vad_parameters", "treshold=0.4") == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("transcribe: error: vad_parameters: unknown option 'treshold'")
