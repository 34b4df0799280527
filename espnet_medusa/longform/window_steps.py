"""Decodes a batch of windows: prompts, attempts, exceptions and statistics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from espnet_medusa.longform.moving_window import Align, History, MovingWindow
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import Passage, RunningRecording
from espnet_medusa.longform.window import Clock, Window, WindowDecoding, has_failed
from espnet_medusa.longform.word_times import TimedWord
from espnet_medusa.search.statistics import DecodingStatistics
from espnet_medusa.whisper.transcript import TranscriptText

Decoded = tuple[WindowDecoding, Align | None]


class WindowDecoder(Protocol):
    """A model that decodes windows, such as ``WhisperWindows``."""

    window_frames: int  # frames of 10 ms of the model's window
    prompt_tokens: int  # maximum number of tokens of the text before a window
    clock: Clock  # converts timestamps
    text: TranscriptText  # converts tokens to text

    def features(self, samples: np.ndarray) -> Any:
        """Compute the features of a recording (samples,), with ``frames`` of 10 ms."""

    def encode(self, windows: Sequence[tuple[Any, Window]]) -> Any:
        """Encode U windows, each with its recording's features."""

    def choose_languages(
        self, windows: Sequence[tuple[Any, Window]], languages: Sequence[str | None]
    ) -> list[str | None]:
        """Return U language codes; for ``detect``, detect the language of the window."""

    def decode(
        self,
        encoded: Any,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        languages: Sequence[str | None],
        temperature: float,
    ) -> list[tuple[WindowDecoding, DecodingStatistics]]:
        """Decode some rows of ``encoded``, each after the text before it and in its language."""

    def align(
        self, encoded: Any, row: int, frames: int, language: str | None, tokens: Sequence[int]
    ) -> list[TimedWord]:
        """Return the words of a row's text tokens with times within its frames of 10 ms."""


@dataclass(frozen=True)
class WindowSteps:
    """Begins passages, and decodes the next window of each."""

    decoder: WindowDecoder  # decodes windows
    options: LongFormOptions  # prompts, fallback and word times

    def begin(
        self,
        recording: RunningRecording,
        last_frame: int,
        clip_timestamps: tuple[float, ...],
        last_speech_s: float = 0.0,
    ) -> None:
        """Add a passage to a recording.

        Args:
            last_frame: As in ``Passage``.
            clip_timestamps: Parts of the recording, as the option of this name.
            last_speech_s: End of the speech before the passage.
        """
        decoder, options = self.decoder, replace(self.options, clip_timestamps=clip_timestamps)
        prompt = options.initial_prompt
        initial = () if prompt is None else tuple(decoder.text.encode(prompt))
        history = History(initial, decoder.prompt_tokens, options.carry_initial_prompt)
        frames = recording.features.frames
        window = MovingWindow(
            frames, decoder.window_frames, decoder.clock, decoder.text, options, history,
            last_speech_s,
        )  # fmt: skip
        recording.passages.append(Passage(recording, window, last_frame))

    def step(self, passages: Sequence[Passage]) -> None:
        """Decode a window of each passage; an exception becomes its recording's ``error``."""
        if not passages:
            return
        started = time.perf_counter()
        pairs = [(passage, passage.next()) for passage in passages]
        pairs = [(passage, window) for passage, window in pairs if window is not None]
        for (passage, window), decoded in zip(pairs, self._decode(pairs), strict=True):
            try:
                if isinstance(decoded, Exception):
                    raise decoded
                segments = passage.window.take(window, *decoded)
                passage.segments += segments
                if any(segment.tokens for segment in segments):
                    passage.recording.score += decoded[0].log_probability
            except Exception as error:  # also of word alignment
                passage.recording.error = error
        share_seconds([passage.recording for passage in passages], started)

    def _decode(self, pairs: Sequence[tuple[Passage, Window]]) -> list[Decoded | Exception]:
        """Decode windows as a batch; one by one if that fails."""
        try:
            return self._decode_together(pairs)
        except Exception as error:  # of any kind: the other recordings are decoded
            if len(pairs) == 1:
                return [error]
        return [self._decode([pair])[0] for pair in pairs]

    def _decode_together(self, pairs: Sequence[tuple[Passage, Window]]) -> list[Decoded]:
        """Return for each window its first attempt that has not failed, or its last."""
        if not pairs:
            return []
        passages = [passage for passage, _ in pairs]
        encoded = self.decoder.encode(
            [(passage.recording.features, window) for passage, window in pairs]
        )
        decodings: list[WindowDecoding | None] = [None] * len(pairs)
        rows = [*range(len(pairs))]
        for temperature in self.options.temperatures:
            prompts = [passages[row].window.history.prompt() for row in rows]
            languages = [passages[row].recording.language for row in rows]
            attempts = self.decoder.decode(encoded, rows, prompts, languages, temperature)
            for row, (decoding, statistics) in zip(rows, attempts, strict=True):
                decodings[row] = decoding
                passages[row].recording.statistics += statistics
            rows = [row for row in rows if has_failed(decodings[row], self.options)]
            if not rows:
                break
        aligners = [self._aligner(encoded, row, *pair) for row, pair in enumerate(pairs)]
        return [*zip(decodings, aligners, strict=True)]

    def _aligner(self, encoded: Any, row: int, passage: Passage, window: Window) -> Align | None:
        if not self.options.word_timestamps:
            return None
        language = passage.recording.language
        return partial(self.decoder.align, encoded, row, window.frames, language)


def share_seconds(recordings: Sequence[RunningRecording], started: float) -> None:
    """Add the time since ``started`` to the recordings, in equal shares."""
    if not recordings:
        return
    seconds = (time.perf_counter() - started) / len(recordings)
    for recording in recordings:
        recording.statistics.total_seconds += seconds
