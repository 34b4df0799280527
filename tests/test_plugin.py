"""Registration of the plugin in ESPnet's tables and commands."""

import subprocess
import sys

import pytest
from espnet2.tasks.asr import decoder_choices, encoder_choices, model_choices

from espnet_medusa import plugin
from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.runtime.espnet_scorer import ScoringWhisperDecoder
from espnet_medusa.training.asr_model import MedusaASRModel


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_register_fills_the_tables_and_may_be_repeated():
    plugin.register()
    plugin.register()
    assert encoder_choices.get_class("hf_whisper") is HFWhisperEncoder
    assert decoder_choices.get_class("whisper_medusa") is ScoringWhisperDecoder
    assert model_choices.get_class("medusa") is MedusaASRModel


def test_a_used_name_is_refused(monkeypatch):
    monkeypatch.setitem(encoder_choices.classes, "hf_whisper", int)
    with pytest.raises(RuntimeError, match="hf_whisper.*already"):
        plugin.register()


def test_commands_have_the_plugins_options():
    done = run("-m", "espnet_medusa.bin.asr_train", "--print_config", "--model", "medusa")
    assert done.returncode == 0 and "model: medusa" in done.stdout
    done = run("-m", "espnet_medusa.bin.asr_inference", "--help")
    assert done.returncode == 0 and "--draft_depth" in done.stdout and "--beam_size" in done.stdout
