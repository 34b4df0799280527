"""The transcribing command live: files, pipes, JSON lines, and text that survives a kill."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import soundfile
from cases import cases
from experiment import read_lines
from openai_whisper import noise_and_silence, openai_whisper, save_openai_whisper
from refusals import exit_status

from espnet_medusa.bin import transcribe
from espnet_medusa.inference.live.live_words import LiveUpdate, LiveWord
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.transcription import live_sources
from espnet_medusa.transcription.formats import OPENAI
from espnet_medusa.transcription.live_display import CLEAR, DIM, Terminal
from espnet_medusa.transcription.live_sources import is_container, paced, piped, recorded

SECONDS = 8
OPTIONS = ["--live", "--skip_silence", "false", "--no_speech_threshold", "none"]
OPTIONS += ["--compression_ratio_threshold", "none", "--language", "en", "--beam_size", "1"]


@pytest.fixture(scope="session")
def whisper(tmp_path_factory):
    """Path of a random Whisper whose texts end and depend on the audio."""
    folder = tmp_path_factory.mktemp("live_whisper")
    return save_openai_whisper(openai_whisper(4, end=3.0, text_context=96), folder / "w.pt")


@pytest.fixture
def run(whisper, speech2text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(whisper.parent / "cache"))
    monkeypatch.setattr(transcribe.decoding_command, "load", lambda options, mapped: speech2text)

    def run(*words):
        command = ["--model", whisper, "--output_dir", tmp_path / "out", *OPTIONS]
        return exit_status(transcribe.main, *command, *words)

    return run


@pytest.fixture
def talk(tmp_path):
    path = tmp_path / "talk.wav"
    soundfile.write(path, noise_and_silence(SECONDS, 1), 16000)
    return path


def read_json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_a_file(run, talk, tmp_path, capsys):
    assert run(talk, "--pace", "0", "--output_format", "all", "--update_seconds", "1") == 0
    updates, out = read_json_lines(capsys.readouterr().out), tmp_path / "out"
    names = ["confirmed", "tentative", "start", "end", "audio_s", "delay_s"]
    assert all([*update] == names for update in updates)
    assert [update["audio_s"] for update in updates] == [*range(1, SECONDS + 1), SECONDS]
    text = "".join(update["confirmed"] for update in updates)
    assert text and not updates[-1]["tentative"]
    result = json.loads((out / "talk.json").read_text())
    assert result["text"] == text == "".join(row["text"] for row in result["segments"])
    assert read_lines(out / "text") == {"talk": " ".join(text.split())}
    assert {path.suffix[1:] for path in out.glob("talk.*")} == {*OPENAI}
    assert (out / "segments" / "wav.scp").read_text().endswith("talk.wav\n")
    assert not any("words" in row for row in result["segments"])


@cases(("raw",), ("wav",), ("flac",), ("ogg",))
def test_a_pipe(kind, run, tmp_path, capsys, monkeypatch):
    samples, stream = noise_and_silence(SECONDS, 2), io.BytesIO()
    if kind == "raw":
        stream.write((samples * 32767).astype("<i2").tobytes() + b"x")
    else:
        wide = np.repeat(samples, 2 if kind == "flac" else 1)  # at 32 kHz
        sound = {"format": kind, "samplerate": 32000 if kind == "flac" else 16000}
        soundfile.write(stream, wide[:, None].repeat(2, axis=1), **sound)
    stream.seek(0)
    stream.seekable = lambda: False
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stream}))
    for name in ("live", "live_2"):
        stream.seek(0)
        assert run("-", "--output_format", "srt", "--word_timestamps", "true") == 0
        updates = read_json_lines(capsys.readouterr().out)
        assert updates[-1]["audio_s"] == pytest.approx(SECONDS, abs=0.05)
        assert (tmp_path / "out" / f"{name}.srt").read_text().startswith("1\n00:00:0")
        assert not (tmp_path / "out" / f"{name}.live.txt").exists()


def test_a_pipe_that_is_broken(run, tmp_path, capsys, monkeypatch):
    stream = io.BytesIO(b"fLaC" + bytes(5000))
    monkeypatch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stream}))
    assert run("-") == 3
    assert "failed: -: FFmpeg cannot read it" in capsys.readouterr().err


def test_a_kill_keeps_confirmed_text(whisper, tmp_path):
    """The process ends in the middle of a pipe, by a signal that it cannot handle."""
    words = ["--model", whisper, "--output_dir", tmp_path / "out", *OPTIONS, "-"]
    command = [sys.executable, "-m", "espnet_medusa.bin.transcribe", *map(str, words)]
    environment = os.environ | {"XDG_CACHE_HOME": str(whisper.parent / "cache")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    samples = (noise_and_silence(30, 3) * 32767).astype("<i2").tobytes()
    with subprocess.Popen(command, env=environment, **pipes) as process:
        confirmed, place = "", 0
        while not confirmed.strip():
            process.stdin.write(samples[place : place + 32000])
            process.stdin.flush()
            place += 32000
            confirmed += json.loads(process.stdout.readline())["confirmed"]
        process.kill()
    assert (tmp_path / "out" / "live.live.txt").read_text().startswith(confirmed)


def test_an_interrupt_ends_the_recording(run, talk, tmp_path, capsys):
    timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    assert run(talk, "--pace", "1") == 0
    assert time.monotonic() - started < SECONDS - 1
    text = "".join(one["confirmed"] for one in read_json_lines(capsys.readouterr().out))
    assert (tmp_path / "out" / "talk.txt").is_file() and text


@cases(
    (["--output_format", "html"], "output_format: html; not allowed with --live"),
    (["--batch_size", "2"], "batch_size: 2; not allowed with --live"),
    (["--vad_filter", "true"], "vad_filter: True; not allowed live"),
    (["--pace", "-1"], "pace: -1.0; allowed: 0 or more"),
    (["--live_policy", "none"], "live_policy"),
    (["other.wav"], "one file, - or nothing"),
    (["--output_format", "ctm"], "word_timestamps"),
)
def test_refused_options(words, message, run, talk, capsys):
    assert run(talk, *words) == 1
    assert message in capsys.readouterr().err


def test_options_of_live_alone(whisper, talk, capsys):
    assert exit_status(transcribe.main, talk, "--model", whisper, "--pace", "1") == 1
    assert "pace: 1.0; allowed with --live" in capsys.readouterr().err


def test_a_microphone_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(ValueError, match=r"install espnet_medusa\[live\]"):
        next(recorded(threading.Event()))


def test_a_microphone(monkeypatch):
    """A made-up microphone at 48 kHz; the recording ends when it is stopped."""
    stopped, samples = threading.Event(), noise_and_silence(2, 1)

    class Microphone:
        PortAudioError = OSError

        def __init__(self, rate_hz, channels, dtype, callback):
            self.take = callback
            assert (rate_hz, channels, dtype) == (48000, 1, "float32")

        def __enter__(self):
            for part in np.split(np.repeat(samples, 3), 10):
                self.take(part[:, None], len(part), None, None)
            stopped.set()

        def __exit__(self, *_):
            pass

    module = type(sys)("sounddevice")
    module.InputStream, module.PortAudioError = Microphone, OSError
    module.query_devices = lambda kind: {"default_samplerate": 48000.0}
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    assert len(np.concatenate([*recorded(stopped)])) == pytest.approx(32000, abs=2)


def test_late_readers_get_everything(monkeypatch):
    samples, stopped = np.arange(16000, dtype=np.float32), threading.Event()
    pieces = []
    for piece in paced(samples, 4, stopped):
        pieces.append(piece)
        time.sleep(0.06 if len(pieces) % 2 else 0)
    assert np.array_equal(np.concatenate(pieces), samples) and len({*map(len, pieces)}) > 1
    monkeypatch.setattr(live_sources, "WAITING", 2)  # the pipe waits
    data = np.arange(16000, dtype="<i2")
    found = [*piped(io.BytesIO(data.tobytes()), stopped)]
    assert np.array_equal(np.concatenate(found) * 32768, data)


@cases(
    (b"RIFF....WAVE", True), (b"fLaC", True), (b"....ftypM4A ", True), (b"\x00" * 400, False),
    (b"", False), ((b"G" + bytes(187)) * 3, True), (b"G" + bytes(400), False),
)  # fmt: skip
def test_containers_are_told_from_samples(head, expected):
    assert is_container(head[: live_sources.HEAD]) == expected


def test_the_line_of_a_terminal():
    def update(confirmed, tentative):
        words = (
            [LiveWord(text, (1,), 0.0, 1.0) for text in part] for part in (confirmed, tentative)
        )
        return LiveUpdate(*map(tuple, words), (), 0.0, 1.0, "en")

    stream = io.StringIO()
    show = Terminal(stream, 21)
    show(update([], [" some", " words"]))
    assert stream.getvalue().endswith(f"{CLEAR}{DIM}some words\x1b[0m")
    show(update([" some", " words"], [" and", " more\n", " words"]))
    assert stream.getvalue().endswith(f"{CLEAR}some words{DIM} and more \x1b[0m")
    show(update([" and", " more", " words"], [" 語語語語語語語語"]))
    assert stream.getvalue().endswith(
        f"{CLEAR}some words and more\nwords{DIM} 語語語語語語語\x1b[0m"
    )
    show.end()
    assert stream.getvalue().endswith("\n")


def test_the_python_door(whisper):
    live = Speech2Text.from_pretrained(str(whisper), search="greedy", language="en").live()
    live.add(np.zeros(16000, np.float32))
    assert live.update().confirmed == () and live.finish().segments == ()
