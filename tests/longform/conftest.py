"""Random Whispers for long recordings."""

from functools import cache

import pytest
import torch
from openai_whisper import ctc_whisper, openai_whisper, save_openai_whisper
from tiny_whisper import read_whisper_experiment

from espnet_medusa.inference.speech2text import Speech2Text


@pytest.fixture(scope="module")
def speech2text(tmp_path_factory):
    """A random model with timestamps, text and usually an end symbol."""
    path = tmp_path_factory.mktemp("whisper") / "whisper.pt"
    save_openai_whisper(openai_whisper(1, end=4.0, text_context=32), path)
    return Speech2Text.from_pretrained(str(path), search="greedy", language="en")


@pytest.fixture(scope="package")
def without_positions(tmp_path_factory):
    """Folder and model of a Whisper with CTC whose encoder has no positions."""
    experiment = ctc_whisper(tmp_path_factory.mktemp("whisper"))
    table = torch.load(experiment.model, weights_only=True)
    table["encoder.whisper.embed_positions.weight"].zero_()
    torch.save(table, experiment.model)
    return str(experiment.folder), read_whisper_experiment(experiment)


@pytest.fixture(scope="package")
def both_paddings(without_positions):
    """Return a function from options to that Whisper with full and with merged padding."""

    @cache
    def opened(**options) -> list[Speech2Text]:
        given = {"trained": without_positions[1], "search": "greedy"} | options
        return [Speech2Text(**given, encoder_padding=padding) for padding in ("full", "merged")]

    return opened
