"""Folders as users have them: nothing is lost, what is broken is named, the others have a text."""

import json

import numpy as np
import pytest
import soundfile
from broken_files import BROKEN, write_broken
from experiment import read_lines
from media_files import write_media
from spoken import chords, lay_out, say

from espnet_medusa.audio import reader
from espnet_medusa.bin import transcribe as command
from espnet_medusa.search.statistics import read_statistics
from espnet_medusa.transcription import recordings

pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")

QUIET = ("silence", "noise", "music")
SPOKEN = ("talk", "film", "call")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One of each kind, good and broken."""
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
def run(whisper, speech2text, files, tmp_path, monkeypatch):
    """The command's exit status over them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(whisper.parent / "cache"))
    monkeypatch.setattr(command.asr_inference, "load", lambda options: speech2text)

    def run(*words):
        given = [str(files), "--model", str(whisper), "--output_dir", str(tmp_path / "out")]
        once = ["--temperature_increment_on_fallback", "none", "--no_speech_threshold", "none"]
        with pytest.raises(SystemExit) as stop:
            command.main([*given, "--language", "en", *once, *words])
        return stop.value.code

    return run


def assert_failures(folder, files, told):
    failed = read_lines(folder / "failed_utterances")
    assert failed.keys() == BROKEN.keys()
    for kind, (suffix, _, reason) in BROKEN.items():
        assert failed[kind].startswith(f"{files / kind}{suffix}: ") and reason in failed[kind]
        assert told.count(f"failed: {failed[kind]}\n") == 1


@pytest.mark.parametrize("options", [["--vad_filter", "true"], []])
def test_a_folder_some_of_whose_files_are_broken(run, files, tmp_path, capsys, caplog, options):
    assert run(*options) == 3
    said, out = capsys.readouterr(), tmp_path / "out"
    texts = read_lines(out / "text")
    assert texts.keys() == {*QUIET, *SPOKEN}, "those and the failed are all there are"
    assert_failures(out, files, said.err)
    total = len(BROKEN) + len(texts)
    assert f"{len(texts)} of {total} files" in said.err
    assert all(texts[name] for name in SPOKEN)
    heard = [record.message for record in caplog.records if "nobody speaks" in record.message]
    assert len(heard) == (len(QUIET) if options else 0)
    if options:
        assert all(texts[name] == "" and (out / f"{name}.txt").read_text() == "" for name in QUIET)
        assert all(any(f"{files / name}." in line for line in heard) for name in QUIET)
    statistics = read_statistics(out / "statistics.json")
    assert statistics["talk"].audio_seconds == pytest.approx(
        soundfile.info(files / "talk.flac").duration, abs=0.02
    )


def test_formats_of_what_is_said_and_of_what_is_not(run, files, tmp_path):
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
    asked, opened = [], []
    probe, open_source = reader.probe_audio, reader.open_source
    monkeypatch.setattr(
        reader, "open_source", lambda path, *more: opened.append(path) or open_source(path, *more)
    )
    monkeypatch.setattr(recordings, "probe_audio", lambda path: asked.append(path) or probe(path))
    assert run() == 3
    assert sorted(asked) == sorted(map(str, files.iterdir()))
    assert max(map(opened.count, asked)) == 2, "for its header, and for its audio"


def test_mistakes_in_parameters_are_one_line(run, capsys):
    assert run("--vad_filter", "true", "--vad_parameters", "treshold=0.4") == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("transcribe: error: vad_parameters: unknown option 'treshold'")
