"""A random Whisper, and the transcribing command with it."""

import pytest
import torch
from openai_whisper import openai_whisper, save_openai_whisper
from refusals import exit_status

from espnet_medusa.bin import transcribe
from espnet_medusa.decoding.runtime.precision import has_kernels
from espnet_medusa.inference.speech2text import Speech2Text

ONE_ATTEMPT = ["--temperature_increment_on_fallback", "none", "--no_speech_threshold", "none"]
ONE_ATTEMPT += ["--skip_silence", "false"]  # the audio of tests is noise


@pytest.fixture(scope="session")
def whisper(tmp_path_factory):
    """Path of a random Whisper whose texts end; its folder also has the cache."""
    has_kernels(torch.device("cpu"))  # compiled once, before tests move the cache
    folder = tmp_path_factory.mktemp("whisper")
    return save_openai_whisper(openai_whisper(1, end=4.0), folder / "whisper.pt")


@pytest.fixture(scope="session")
def speech2text(whisper):
    """The model of all tests; it takes ESPnet seconds to make."""
    made = Speech2Text.from_pretrained(str(whisper), search="greedy", language="en")
    made.release_weights = lambda long_form: None  # later word times need the weights
    return made


@pytest.fixture
def transcribe_folder(whisper, speech2text, tmp_path, monkeypatch):
    """Function that transcribes a folder into ``tmp_path / "out"`` and returns the exit status."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(whisper.parent / "cache"))
    monkeypatch.setattr(transcribe.decoding_command, "load", lambda options, mapped: speech2text)

    def run(folder, *words):
        command = [folder, "--model", whisper, "--output_dir", tmp_path / "out"]
        return exit_status(transcribe.main, *command, "--language", "en", *ONE_ATTEMPT, *words)

    return run
