"""Decodes long recordings window after window, the windows of several recordings per batch.

The algorithm is that of openai-whisper's ``transcribe`` (Radford et al., arXiv 2212.04356, 4.5).
Each window of a batch has its own prompt.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import LongFormStep, LongRecording, RunningRecording
from espnet_medusa.longform.window import Window
from espnet_medusa.longform.window_steps import WindowDecoder, WindowSteps, share_seconds


class LongForm:
    """Decodes recordings of any length.

    Args:
        options: Prompts, fallback and word times.
        batch_size: Maximum number of recordings per batch.
    """

    def __init__(self, decoder: WindowDecoder, options: LongFormOptions, batch_size: int = 1):
        self.decoder, self.options, self.batch_size = decoder, options, batch_size
        self.windows = WindowSteps(decoder, options)

    def __call__(self, recordings: Iterable[LongRecording]) -> Iterator[LongFormStep]:
        """Decode recordings, which are read when the batch has room for them.

        Returns:
            Steps with new segments of a recording. An exception only ends its own recording, whose
            last step has it as ``error``.
        """
        waiting, batch = iter(recordings), []
        while True:
            batch += self._begin([*islice(waiting, self.batch_size - len(batch))])
            if not batch:
                return
            self.windows.step([passage for running in batch for passage in running.passages])
            yield from [running.step() for running in batch]
            batch = [running for running in batch if not running.done]

    def _begin(self, recordings: Sequence[LongRecording]) -> list[RunningRecording]:
        """Compute features and choose languages."""
        started = time.perf_counter()
        begun = [self._features(recording) for recording in recordings]
        self._choose_languages([running for running in begun if running.error is None])
        share_seconds(begun, started)
        return begun

    def _features(self, recording: LongRecording) -> RunningRecording:
        running = RunningRecording.of(recording)
        try:
            running.features = self.decoder.features(recording.samples)
            self.windows.begin(running, recording.frames, self.options.clip_timestamps)
        except Exception as error:  # such as out of memory for the features of hours
            running.error = error
        return running

    def _choose_languages(self, recordings: Sequence[RunningRecording]) -> None:
        """Choose the languages of a batch; one by one if that fails."""
        # As openai-whisper: of the first 30 s, with silence after a shorter recording.
        first = Window(0, self.decoder.window_frames)
        windows = [(running.features, first) for running in recordings]
        try:
            languages = self.decoder.choose_languages(
                windows, [running.language for running in recordings]
            )
        except Exception as error:
            if len(recordings) == 1:
                recordings[0].error = error
                return
            for running in recordings:
                self._choose_languages([running])
            return
        for running, language in zip(recordings, languages, strict=True):
            running.language = language
