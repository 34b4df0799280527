"""Windows of several passages, decoded together: prompts, attempts, failures, what they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from espnet_medusa.longform.fallback import WindowDecoding, has_failed
from espnet_medusa.longform.history import History
from espnet_medusa.longform.moving_window import Align, MovingWindow
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import Passage, RunningRecording
from espnet_medusa.longform.window import Window
from espnet_medusa.longform.window_decoder import WindowDecoder

Found = tuple[WindowDecoding, Align | None]


@dataclass(frozen=True)
class WindowSteps:
    """Begins passages and takes them a window further.

    Attributes:
        decoder: Decodes windows.
        options: What stands before them, when one is decoded again, whether words have times.
    """

    decoder: WindowDecoder
    options: LongFormOptions

    def begin(
        self,
        recording: RunningRecording,
        last_frame: int,
        clip_timestamps: tuple[float, ...],
        last_speech_s: float = 0.0,
    ) -> None:
        """Add a passage to a recording.

        Args:
            recording: With its features.
            last_frame: As ``Passage``'s.
            clip_timestamps: What it is of the recording, as the option of this name.
            last_speech_s: Where speech before it ends.
        """
        own, options = self.decoder, replace(self.options, clip_timestamps=clip_timestamps)
        prompt = options.initial_prompt
        initial = () if prompt is None else tuple(own.text.encode(prompt))
        history = History(initial, own.prompt_tokens, options.carry_initial_prompt)
        frames = recording.features.frames
        window = MovingWindow(
            frames, own.window_frames, own.clock, own.text, options, history, last_speech_s
        )
        recording.passages.append(Passage(recording, window, last_frame))

    def step(self, passages: Sequence[Passage]) -> None:
        """A window of each; what goes wrong with one is its recording's ``error``."""
        if not passages:
            return
        started = time.perf_counter()
        pairs = [(one, one.next()) for one in passages]
        asked = [(one, window) for one, window in pairs if window is not None]
        for (one, window), found in zip(asked, self._decode(asked), strict=True):
            try:
                if isinstance(found, Exception):
                    raise found
                segments = one.window.take(window, *found)
                one.segments += segments
                if any(segment.tokens for segment in segments):
                    one.recording.score += found[0].log_probability
            except Exception as error:  # to find words may fail, too
                one.recording.error = error
        share_seconds([one.recording for one in passages], started)

    def _decode(self, asked: Sequence[tuple[Passage, Window]]) -> list[Found | Exception]:
        """Windows together, and how each finds its words; one by one where that fails."""
        try:
            return self._decode_together(asked)
        except Exception as error:  # whatever it was, the others go on
            if len(asked) == 1:
                return [error]
        return [self._decode([one])[0] for one in asked]

    def _decode_together(self, asked: Sequence[tuple[Passage, Window]]) -> list[Found]:
        """The first attempt of each window that has not failed, or else the last."""
        if not asked:
            return []
        passages = [one for one, _ in asked]
        encoded = self.decoder.encode([(one.recording.features, window) for one, window in asked])
        decodings: list[WindowDecoding | None] = [None] * len(asked)
        rows = [*range(len(asked))]
        for temperature in self.options.temperatures:
            prompts = [passages[row].window.history.prompt() for row in rows]
            languages = [passages[row].recording.language for row in rows]
            found = self.decoder.decode(encoded, rows, prompts, languages, temperature)
            for row, (decoding, statistics) in zip(rows, found, strict=True):
                decodings[row] = decoding
                passages[row].recording.statistics += statistics
            rows = [row for row in rows if has_failed(decodings[row], self.options)]
            if not rows:
                break
        aligned = [self._align(encoded, row, one.recording.language, window)
                   for row, (one, window) in enumerate(asked)]  # fmt: skip
        return [*zip(decodings, aligned, strict=True)]

    def _align(self, encoded: Any, row: int, language: str | None, window: Window) -> Align | None:
        if not self.options.word_timestamps:
            return None
        return partial(self.decoder.align, encoded, row, window.frames, language)


def share_seconds(recordings: Sequence[RunningRecording], started: float) -> None:
    """Seconds since then, evenly among those present."""
    if not recordings:
        return
    seconds = (time.perf_counter() - started) / len(recordings)
    for one in recordings:
        one.statistics.total_seconds += seconds
