"""Long recordings to segments: several run at once, their windows are decoded together.

The algorithm is that of openai-whisper's ``transcribe`` (Radford et al., arXiv 2212.04356, 4.5).
Windows of one recording follow one another; those of several go through the decoder as a batch,
each with its own prompt and at its own pace.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import LongFormStep, LongRecording, RunningRecording
from espnet_medusa.longform.window import Window
from espnet_medusa.longform.window_decoder import WindowDecoder
from espnet_medusa.longform.window_steps import WindowSteps, share_seconds


class LongForm:
    """Recordings of any length to segments.

    Args:
        decoder: Decodes windows.
        options: How windows follow each other.
        batch_size: Most recordings that run at once.
    """

    def __init__(self, decoder: WindowDecoder, options: LongFormOptions, batch_size: int = 1):
        self.decoder, self.options, self.batch_size = decoder, options, batch_size
        self.windows = WindowSteps(decoder, options)

    def __call__(self, recordings: Iterable[LongRecording]) -> Iterator[LongFormStep]:
        """Steps as they are taken; recordings are read when there is room for them.

        What goes wrong with one stops nobody else: its last step has the ``error``.
        """
        waiting, running = iter(recordings), []
        while True:
            running += self._begin([*islice(waiting, self.batch_size - len(running))])
            if not running:
                return
            self.windows.step([passage for one in running for passage in one.passages])
            yield from [one.step() for one in running]
            running = [one for one in running if not one.done]

    def _begin(self, recordings: Sequence[LongRecording]) -> list[RunningRecording]:
        """Recordings at their beginning, with their languages."""
        began = time.perf_counter()
        started = [self._start(recording) for recording in recordings]
        self._choose_languages([one for one in started if one.error is None])
        share_seconds(started, began)
        return started

    def _start(self, recording: LongRecording) -> RunningRecording:
        one = RunningRecording.of(recording)
        try:
            one.features = self.decoder.features(recording.samples)
            self.windows.begin(one, recording.frames, self.options.clip_timestamps)
        except Exception as error:  # of hours there may be no room for features
            one.error = error
        return one

    def _choose_languages(self, started: Sequence[RunningRecording]) -> None:
        """Together; one by one where that fails."""
        # As openai-whisper: of the first 30 s, and of silence where there is less.
        first = Window(0, self.decoder.window_frames)
        windows = [(one.features, first) for one in started]
        try:
            languages = self.decoder.choose_languages(windows, [one.language for one in started])
        except Exception as error:
            if len(started) == 1:
                started[0].error = error
                return
            for one in started:
                self._choose_languages([one])
            return
        for one, language in zip(started, languages, strict=True):
            one.language = language
