"""Calls of ``Speech2Text.decode``, recorded."""

from collections.abc import Callable
from typing import Any

from espnet_medusa.inference.speech2text import Speech2Text


def record_decode(monkeypatch, describe: Callable[[list], Any]) -> list:
    """Return a list to which each call adds the description of its utterances."""
    seen, decode = [], Speech2Text.decode

    def recorded(self, speeches, languages=None):
        seen.append(describe(speeches))
        return decode(self, speeches, languages)

    monkeypatch.setattr(Speech2Text, "decode", recorded)
    return seen
