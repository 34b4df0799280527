"""Long recordings to segments by their speech: chunks that do not wait for each other.

Where somebody speaks a detector says; speech is packed into chunks of at most the model's window
(as whisperX does: Bain et al., arXiv 2303.00747, 2.1 and 2.2), and chunks of one recording and of
several go through the decoder as a batch. Each is decoded as a recording of its own: no text of the
chunk before it is its prompt.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence

from espnet_medusa.audio.voice_activity import SpeechDetector
from espnet_medusa.longform.moving_window import clips_in_frames
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import LongFormStep, LongRecording, RunningRecording
from espnet_medusa.longform.speech_chunks import SpeechChunk, pack_speech
from espnet_medusa.longform.window import FRAMES_PER_S
from espnet_medusa.longform.window_decoder import WindowDecoder
from espnet_medusa.longform.window_steps import WindowSteps, share_seconds

logger = logging.getLogger(__name__)

# Of less speech that is left of a chunk a window of its own makes up a text.
SHORTEST_REST_FRAMES = 50


class ChunkedLongForm:
    """Recordings of any length to segments, chunks of speech together.

    Args:
        decoder: Decodes windows.
        options: How speech is found, and how each chunk of it is decoded.
        batch_size: Most windows that are decoded together.
    """

    def __init__(self, decoder: WindowDecoder, options: LongFormOptions, batch_size: int = 1):
        self.decoder, self.options, self.batch_size = decoder, options, batch_size
        self.windows, parameters = WindowSteps(decoder, options), options.vad_parameters
        asked_s = parameters.max_speech_duration_s or math.inf
        self.longest = round(min(asked_s * FRAMES_PER_S, decoder.window_frames))
        margin = min(parameters.speech_pad_ms / 1000 * FRAMES_PER_S, self.longest / 4)
        self.margin = round(margin)
        longest_s = (self.longest - 2 * self.margin) / FRAMES_PER_S
        self.find_speech = SpeechDetector(parameters, longest_s)

    def __call__(self, recordings: Iterable[LongRecording]) -> Iterator[LongFormStep]:
        """Steps as they are taken; recordings are read when there is room for their chunks.

        Segments of a recording come in their order. What goes wrong with one recording stops
        nobody else: its last step has the ``error``.
        """
        waiting, chunks = iter(recordings), []
        while True:
            while len(chunks) < self.batch_size and (recording := next(waiting, None)) is not None:
                begun = self._begin(recording)
                if begun.done:
                    yield begun.step()
                else:
                    chunks += begun.passages
            if not chunks:
                return
            running = chunks[: self.batch_size]
            self.windows.step(running)
            touched = {id(chunk.recording): chunk.recording for chunk in running}
            yield from [one.step() for one in touched.values()]
            chunks = [chunk for chunk in chunks if chunk.next() is not None]

    def _begin(self, recording: LongRecording) -> RunningRecording:
        """A recording with a passage for each of its chunks, and with its language."""
        started, one = time.perf_counter(), RunningRecording.of(recording)
        try:
            chunks = self._chunks(recording)
            if chunks:
                self._add(one, recording, chunks)
            else:
                logger.warning(f"{recording.name}: nobody speaks in its {one.duration_s:.1f} s")
        except Exception as error:  # of hours there may be no room for features
            one.error = error
        share_seconds([one], started)
        return one

    def _add(
        self, one: RunningRecording, recording: LongRecording, chunks: Sequence[SpeechChunk]
    ) -> None:
        one.features = self.decoder.features(recording.samples)
        speech_end_s = 0.0
        for chunk in chunks:
            last_frame = max(chunk.speech_end - SHORTEST_REST_FRAMES, chunk.start + 1)
            clip = chunk.start / FRAMES_PER_S, chunk.end / FRAMES_PER_S
            self.windows.begin(one, last_frame, clip, speech_end_s)
            speech_end_s = chunk.speech_end / FRAMES_PER_S
        first = one.passages[0].window.next()
        (one.language,) = self.decoder.choose_languages([(one.features, first)], [one.language])

    def _chunks(self, recording: LongRecording) -> list[SpeechChunk]:
        """Speech of the clips that are asked for."""
        speech = [
            (math.floor(start_s * FRAMES_PER_S), math.ceil(end_s * FRAMES_PER_S))
            for start_s, end_s in self.find_speech(recording.samples)
        ]
        frames = recording.frames
        return [
            chunk
            for start, end in clips_in_frames(self.options.clip_timestamps, frames)
            for chunk in pack_speech(speech, (start, min(end, frames)), self.longest, self.margin)
        ]
