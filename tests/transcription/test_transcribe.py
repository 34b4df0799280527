"""The transcribing command and function: the texts of the inference command for any file."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import yaml
from cases import cases
from experiment import WINDOW_S, make_experiment, read_lines, write_noise
from recorded_calls import interrupt_call
from refusals import assert_refused, exit_status
from tiny_whisper import save_whisper_of_bytes, whisper_experiment

import espnet_medusa
from espnet_medusa.bin import asr_inference, transcribe
from espnet_medusa.decoding.search.statistics import read_statistics
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.transcription import open_model
from espnet_medusa.transcription.open_model import find_model
from espnet_medusa.transcription.transcribe import choose_device

GOOD = {"good": "good.wav", "stereo": "stereo.flac",
        "more_slow": "more/slow.wav", "more_packed": "more/packed.mp3"}  # fmt: skip
BAD = {"long": "docs/long_audio.md", "empty": "zero length", "nothing": "is an empty file",
       "broken": "no audio that libsndfile or FFmpeg reads"}  # fmt: skip
# ESPnet's tasks and transformers' models take seconds to import.
NOT_IMPORTED = "espnet2.tasks.asr", "espnet2.tasks.abs_task", "transformers.modeling_utils"
SHORT_START = f"""
import sys
from espnet_medusa.bin import transcribe
transcribe.main(sys.argv[1:])
assert not {{*{NOT_IMPORTED}}} & {{*sys.modules}}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An experiment of a random model, and a decode config that makes its texts end."""
    experiment = make_experiment(tmp_path_factory.mktemp("exp"))
    config = experiment.folder / "greedy.yaml"
    options = {"search": "greedy", "minlenratio": -4, "maxlenratio": -12, "batch_size": 3}
    options["decoder_precision"] = None  # of the inference command
    config.write_text(yaml.safe_dump(options | {"suppress_tokens": [0, 1, 2]}))  # no blanks
    return experiment


@pytest.fixture
def talks(tmp_path):
    folder = tmp_path / "talks"
    (folder / "more").mkdir(parents=True)
    write_noise(folder / "good.wav", 0.6, seed=1)
    write_noise(folder / "more" / "slow.wav", 0.9, seed=2, rate_hz=8000)
    write_noise(folder / "more" / "packed.mp3", 0.7, seed=3, rate_hz=24000)
    two = 0.1 * np.random.default_rng(4).standard_normal((13230, 2))
    soundfile.write(folder / "stereo.flac", two, 44100)
    write_noise(folder / "long.wav", WINDOW_S + 0.1)
    write_noise(folder / "empty.wav", 0)
    (folder / "nothing.wav").touch()
    (folder / "broken.wav").write_bytes(b"no audio")
    (folder / "notes.txt").write_text("no audio either")
    return folder


def run(model, *words) -> int:
    options = ["--model", model.folder, "--config", model.folder / "greedy.yaml"]
    return exit_status(transcribe.main, *words, *options)


def decoded(model, talks, tmp_path) -> dict[str, str]:
    """Texts of the inference command for audio that soxr resampled."""
    lines = []
    for key, name in GOOD.items():
        samples, rate_hz = soundfile.read(talks / name, dtype="float32", always_2d=True)
        path = tmp_path / f"{key}_16k.wav"
        mono = soxr.resample(samples.mean(axis=1), rate_hz, 16000)
        soundfile.write(path, mono, 16000, subtype="FLOAT")
        lines.append(f"{key} {path}\n")
    (tmp_path / "wav.scp").write_text("".join(lines))
    command = [*model.options(), "--config", str(model.folder / "greedy.yaml")]
    command += ["--data_path_and_name_and_type", f"{tmp_path / 'wav.scp'},speech,sound"]
    asr_inference.main([*command, "--output_dir", str(tmp_path / "decoded")])
    texts = read_lines(tmp_path / "decoded" / "1best_recog" / "text")
    return {key: " ".join(text.split()) for key, text in texts.items()}


def test_files_of_all_kinds(model, talks, tmp_path, capsys, caplog, rows):
    output = tmp_path / "out"
    assert run(model, talks, "--output_dir", output, "--output_format", "all") == 3
    printed = capsys.readouterr()
    assert rows == [3, 1], "decoded together"
    expected = decoded(model, talks, tmp_path)
    assert expected.keys() == GOOD.keys() and all(expected.values())
    assert len({*expected.values()}) > 1, "texts of files must differ"
    assert read_lines(output / "text") == expected
    assert dict(line.split(" ", 1) for line in printed.out.splitlines()) == expected
    for key, name in GOOD.items():
        stem = output / name
        assert stem.with_suffix(".txt").read_text() == expected[key] + "\n"
        fields = json.loads(stem.with_suffix(".json").read_text())
        assert fields["text"] == expected[key] and fields["file"] == str(talks / name)
        assert fields["duration"] == pytest.approx(soundfile.info(talks / name).duration, abs=0.06)
    assert read_statistics(output / "statistics.json").keys() == expected.keys()
    # The other files are listed at the end with reasons.
    failures = [line for line in printed.err.splitlines() if line.startswith("failed: ")]
    assert len(failures) == len(BAD) and "4 of 8 files" in printed.err
    failed = read_lines(output / "failed_utterances")
    assert failed.keys() == BAD.keys()
    for key, reason in BAD.items():
        assert f"{key}.wav" in failed[key] and reason in failed[key]
        assert sum(failed[key] in line for line in failures) == 1
    averaged = [record.message for record in caplog.records if "averaged" in record.message]
    assert averaged == [f"{talks / 'stereo.flac'}: its 2 channels are averaged"]


def test_files_with_odd_names_and_unusable_results(model, talks, tmp_path, in_folder):
    odd = ["~t.wav", " lead.wav", "trail.wav ", "pipe|", 246 * "m" + ".wav"]
    for name in [*odd, 252 * "n" + ".au", "x.wav", "y.wav"]:
        Path(name).write_bytes((talks / "good.wav").read_bytes())
    for folder in ("out/x.txt", "out/y.txt/empty"):
        Path(folder).mkdir(parents=True)
    assert run(model, *odd, 252 * "n" + ".au", "x.wav", "y.wav", "--output_dir", "out") == 3
    assert read_lines(Path("out/text")).keys() == {"~t", "lead", "trail", "pipe|", 246 * "m"}
    failed = read_lines(Path("out/failed_utterances"))
    assert failed.keys() == {252 * "n", "x", "y"}
    assert failed["x"].startswith("x.wav: [Errno 21] Is a directory: 'out/x.txt'; rename it")


def test_files_in_a_folder_whose_name_is_not_utf_8(model, talks, tmp_path, monkeypatch):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    for path in (folder / "good.wav", tmp_path / "fine.wav"):
        path.write_bytes((talks / "good.wav").read_bytes())
    assert run(model, "good.wav", tmp_path / "fine.wav", "--output_dir", tmp_path / "out") == 3
    assert read_lines(tmp_path / "out" / "text").keys() == {"fine"}
    failed = read_lines(tmp_path / "out" / "failed_utterances")["good"]
    assert "the name has a line break or is not UTF-8; rename the file or its folder" in failed


def test_files_with_results_are_not_decoded_again(model, talks, tmp_path, capsys, rows):
    output = tmp_path / "out"
    good = [talks / name for name in GOOD.values()]
    assert run(model, *good, "--output_dir", output) == 0
    first = (output / "text").read_text()
    printed = sorted(capsys.readouterr().out.splitlines())
    (output / "good.txt").unlink()
    rows.clear()
    assert run(model, *good, "--output_dir", output, "--output_format", "json") == 0
    assert run(model, *good, "--output_dir", output, "--search", "none") == 1
    assert run(model, *good, "--output_dir", output) == 0
    assert rows == []
    assert (output / "text").read_text() == first
    assert (output / "good.txt").exists() and (output / "good.json").exists()
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(printed * 2)
    links = [tmp_path / f"link{number}" for number, _ in enumerate(good)]
    for link, path in zip(links, good, strict=True):
        link.symlink_to(path)
    assert run(model, *links, "--output_dir", output) == 0
    assert rows == [], "another spelling of a path is the same file"
    # A changed file is decoded again; with --overwrite or other options, all are.
    write_noise(talks / "good.wav", 0.8, seed=9)
    assert run(model, *good, "--output_dir", output) == 0
    assert rows == [1]
    assert read_lines(output / "text").keys() == {"good", "stereo", "slow", "packed"}
    for options in (["--overwrite"], ["--draft_depth", "0"]):
        rows.clear()
        assert run(model, *good, "--output_dir", output, *options) == 0
        assert sum(rows) == 4


def test_an_interrupted_call_resumes(model, talks, tmp_path, rows, monkeypatch):
    good = [talks / name for name in GOOD.values()]
    interrupt_call(monkeypatch, Speech2Text, "decode", 2)
    assert run(model, *good, "--output_dir", tmp_path / "out") == 130
    assert rows == [3]
    assert run(model, *good, "--output_dir", tmp_path / "out") == 0
    assert rows == [3, 1]
    rows.clear()
    interrupt_call(monkeypatch, Speech2Text, "decode", 2)
    assert run(model, *good, "--output_dir", tmp_path / "out", "--overwrite") == 130
    assert run(model, *good, "--output_dir", tmp_path / "out") == 0
    assert rows == [3, 1], "the results before --overwrite are not used"
    rows.clear()
    assert run(model, good[0], "--output_dir", tmp_path / "out", "--overwrite") == 0
    assert run(model, *good, "--output_dir", tmp_path / "out") == 0
    assert rows == [1], "results of files that were not given are kept"


def test_a_file_that_fails_now_has_no_files_of_an_earlier_run(model, talks, tmp_path):
    output = tmp_path / "out"
    words = [talks / "good.wav", "--output_dir", output, "--output_format", "all"]
    assert run(model, *words) == 0
    (output / "good.srt").write_text("not requested")
    (talks / "good.wav").write_bytes(b"no audio")
    assert run(model, *words) == 3
    assert {path.name for path in output.glob("good.*")} == {"good.srt"}


def test_the_function_returns_a_transcript_of_each_file(model, talks, tmp_path):
    options = yaml.safe_load((model.folder / "greedy.yaml").read_text()) | {"device": "cpu"}
    decoding = espnet_medusa.transcribe(talks, str(model.folder), **options)
    transcripts = {transcript.recording.id: transcript for transcript in decoding}
    texts = {key: one.text for key, one in transcripts.items() if one.error is None}
    assert texts == decoded(model, talks, tmp_path) and transcripts.keys() == {*texts, *BAD}
    assert all(transcripts[key].text is None and reason in transcripts[key].error
               for key, reason in BAD.items())  # fmt: skip


def test_a_whisper_is_transcribed_without_espnets_tasks(tmp_path, talks):
    experiment = whisper_experiment(tmp_path, save_whisper_of_bytes(tmp_path / "weights"))
    words = [talks / "good.wav", "--model", experiment.folder, "--output_dir", tmp_path / "out"]
    subprocess.run([sys.executable, "-c", SHORT_START, *words], check=True)
    assert [*read_lines(tmp_path / "out" / "text")] == ["good"]


def test_a_whisper_is_converted_once_and_detects_the_language(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    whisper = save_whisper_of_bytes(tmp_path / "whisper", seed=2, timestamps=True)
    write_noise(tmp_path / "talk.wav", 0.5)
    (tmp_path / "short.yaml").write_text("search: greedy\nmaxlenratio: -4\n")
    command = [str(tmp_path / "talk.wav"), "--config", str(tmp_path / "short.yaml")]
    command += ["--output_dir", str(tmp_path / "out"), "--output_format", "json"]
    command += ["--without_timestamps", "true", "--temperature_increment_on_fallback", "none"]
    command += ["--no_speech_threshold", "none"]
    transcribe.main([*command, "--model", str(whisper)])
    detected = json.loads((tmp_path / "out" / "talk.json").read_text())
    models = (tmp_path / "cache" / "espnet_medusa" / "models").iterdir()
    (experiment,) = (path for path in models if path.is_dir())
    files = experiment / "config.yaml", experiment / "model.pth"
    made = files[1].stat().st_mtime_ns
    speech2text = Speech2Text(*files, search="greedy", language="detect", maxlenratio=-4)
    samples, _ = soundfile.read(tmp_path / "talk.wav", dtype="float32")
    text, _, _, hypothesis = speech2text(samples)[0]
    codes = {token: code for code, token in speech2text.whisper.tokens.languages.items()}
    assert detected["language"] == codes[hypothesis.yseq.tolist()[1]]
    assert detected["text"].split() == text.split()
    # Beam search without a CTC branch; nothing is converted again.
    other = "de" if detected["language"] != "de" else "fr"
    options = {"beam_size": 2, "maxlenratio": -4, "device": "cpu", "language": other}
    (transcript,) = espnet_medusa.transcribe(tmp_path / "talk.wav", str(whisper), **options)
    assert transcript.error is None and transcript.language == other
    (transcript,) = espnet_medusa.transcribe(
        tmp_path / "talk.wav", str(whisper), **options | {"language": None}
    )
    assert transcript.language == detected["language"] != "en"
    assert files[1].stat().st_mtime_ns == made
    monkeypatch.setattr(open_model, "CONVERSION", "later")
    assert find_model(str(whisper))[0] == files[0]
    assert files[1].stat().st_mtime_ns > made, "a later conversion writes other files"
    # The language of an experiment is in its config.
    assert find_model(str(whisper)) == (*files, "detect")
    assert find_model(str(experiment)) == (*files, None)


@cases(
    (["nowhere", "--model", "{model}", "--model_file", "none.pth"], "none.pth"),
    (["{talks}/good.wav", "--model", "{talks}"], "config"),
    (["{talks}", "--model", "{talks}/none.yaml"], "model: .*none.yaml: no such file"),
    (["{talks}", "--model", "{talks}", "--model_file", "x"], "allowed with an experiment"),
    (["{talks}", "--model", "{model}", "--search", "best"], "search: .?best"),
    (["{talks}", "--model", "{model}", "--skip_silence", "true"], "skip_silence: .* not used here"),
    (["{talks}", "--model", "{model}", "--clip_timestamps", "5,3"], "clip_timestamps: 5.0,3.0"),
    (["{talks}", "--model", "{model}", "--vad_parameters", "tres=1"], "unknown option 'tres'"),
)
def test_user_errors_are_one_line(options, message, model, talks, capsys, tmp_path):
    words = [word.format(model=model.folder, talks=talks) for word in options]
    assert exit_status(transcribe.main, *words, "--output_dir", tmp_path / "out") == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("transcribe: error: ")
    assert re.search(message, line)


def test_devices(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert choose_device(None) == "cpu"
    assert_refused("device: cuda; allowed on this machine: cpu", choose_device, "cuda")
    assert_refused("device: cuda:1; allowed on this machine: cpu", choose_device, "cuda:1")
    assert_refused("device: gpu; allowed: cpu, cuda, cuda:1", choose_device, "gpu")
