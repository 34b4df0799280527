"""A random Whisper for files of any length and kind."""

import pytest
from openai_whisper import openai_whisper, save_openai_whisper

from espnet_medusa.inference.speech2text import Speech2Text


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """A Whisper that ends, kept in a cache of its own."""
    folder = tmp_path_factory.mktemp("whisper")
    return save_openai_whisper(openai_whisper(1, end=4.0), folder / "whisper.pt")


@pytest.fixture(scope="module")
def speech2text(whisper):
    """The one that all calls share: ESPnet takes seconds to make it."""
    made = Speech2Text.from_pretrained(str(whisper), search="greedy", language="en")
    made.release_weights = lambda long_form: None  # words need them later on
    return made
