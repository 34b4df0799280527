"""A random Whisper for long recordings."""

import pytest
from openai_whisper import openai_whisper, save_openai_whisper

from espnet_medusa.inference.speech2text import Speech2Text


@pytest.fixture(scope="session")
def speech2text(tmp_path_factory):
    """A random model with timestamps, text and usually an end symbol."""
    path = tmp_path_factory.mktemp("whisper") / "whisper.pt"
    save_openai_whisper(openai_whisper(1, end=4.0, text_context=32), path)
    return Speech2Text.from_pretrained(str(path), search="greedy", language="en")
