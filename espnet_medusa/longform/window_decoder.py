"""What long audio asks of a model: windows in, tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from espnet_medusa.longform.fallback import WindowDecoding
from espnet_medusa.longform.window import Clock, Window
from espnet_medusa.longform.word_times import TimedWord
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.whisper.transcript import TranscriptText


class WindowDecoder(Protocol):
    """A model that decodes windows.

    Attributes:
        window_frames: Frames of 10 ms that it hears at once.
        prompt_tokens: Most tokens of the text before a window.
        clock: What its timestamps mean.
        text: Its tokens.
    """

    window_frames: int
    prompt_tokens: int
    clock: Clock
    text: TranscriptText

    def features(self, samples: np.ndarray) -> Any:
        """Of a recording (samples,), with ``frames`` of 10 ms."""

    def encode(self, windows: Sequence[tuple[Any, Window]]) -> Any:
        """Of U windows, each with its recording's features."""

    def choose_languages(
        self, windows: Sequence[tuple[Any, Window]], languages: Sequence[str | None]
    ) -> list[str | None]:
        """U codes, detected in windows where that is asked for."""

    def decode(
        self,
        encoded: Any,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        languages: Sequence[str | None],
        temperature: float,
    ) -> list[tuple[WindowDecoding, DecodingStatistics]]:
        """Some rows of what was encoded, each with the text before it and its language."""

    def align(
        self, encoded: Any, row: int, frames: int, language: str | None, tokens: Sequence[int]
    ) -> list[TimedWord]:
        """Words of a row's text tokens, which are said within so many frames of 10 ms."""
