"""Decodes long recordings window after window, or in independent chunks of speech.

``LongForm`` is the algorithm of openai-whisper's ``transcribe`` (Radford et al., arXiv 2212.04356,
4.5). A batch contains windows of several recordings, each with its own prompt.

``ChunkedLongForm`` finds speech by voice activity detection and packs it into chunks, as in
whisperX (Bain et al., arXiv 2303.00747, 2.1 and 2.2). A chunk fits in the model's window. A batch
has chunks of one or several recordings, without the text of the previous chunk as prompt.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from espnet_medusa.data.audio.voice_activity import SpeechDetector
from espnet_medusa.inference.longform.language_windows import find_language_windows
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.longform.moving_window import clips_in_frames
from espnet_medusa.inference.longform.recording import LongFormStep, LongRecording, RunningRecording
from espnet_medusa.inference.longform.window import FRAMES_PER_S
from espnet_medusa.inference.longform.window_steps import WindowDecoder, WindowSteps, share_seconds
from espnet_medusa.inference.smaller_batches import run_batch

logger = logging.getLogger(__name__)

# Less speech at the end of a chunk gets no further window: the model would hallucinate there.
SHORTEST_REST_FRAMES = 50
RECORDING_FRAMES = 180_000  # half an hour; more recordings run together if they are shorter


@dataclass(eq=False)
class LongForm:
    """Decodes recordings of any length, up to ``batch_size`` per batch."""

    decoder: WindowDecoder
    options: LongFormOptions
    batch_size: int = 1
    batches: int = 1  # that the decoder takes in one call

    def __post_init__(self) -> None:
        self.windows = WindowSteps(self.decoder, self.options)
        self.most_windows = self.batch_size * self.batches

    def __call__(self, recordings: Iterable[LongRecording]) -> Iterator[LongFormStep]:
        """Decode recordings, which are read when the batch has room for them.

        Yield steps with new segments of a recording. An exception only ends its own recording and
        becomes ``error`` of this recording.
        """
        waiting, batch = iter(recordings), []
        while True:
            new: list[RunningRecording] = []
            while self._has_room(batch + new) and (recording := next(waiting, None)):
                new.append(self._begin(recording))
            self._choose_languages([running for running in new if running.error is None])
            batch += new
            if not batch:
                return
            self.windows.step([passage for running in batch for passage in running.passages])
            yield from [running.step() for running in batch]
            batch = [running for running in batch if not running.done]

    def _has_room(self, batch: Sequence[RunningRecording]) -> bool:
        """Return whether a further recording may begin; long ones need memory for features."""
        frames = sum(running.features.frames for running in batch if running.features is not None)
        few = frames < self.batch_size * RECORDING_FRAMES
        return len(batch) < (self.most_windows if few else self.batch_size)

    def _begin(self, recording: LongRecording) -> RunningRecording:
        started = time.perf_counter()
        running = self.windows.start(recording)
        try:
            self.windows.check_language(running)
            self.windows.detect_speech(running, recording)
            self._add_passages(running, recording)
        except Exception as error:  # such as out of memory for the features of long audio
            running.error = error
        share_seconds([running], started)
        return running

    def _add_passages(self, running: RunningRecording, recording: LongRecording) -> None:
        """Compute the features, and add a passage for all clips."""
        running.features = self.decoder.features(recording.samples)
        clips = clips_in_frames(self.options.clip_timestamps, recording.frames)
        if self.decoder.detects(recording.language):
            how = self.decoder.window_frames, self.options.language_detection_segments
            running.language_windows = find_language_windows(recording, clips, *how, running.speech)
        self.windows.begin(running, clips, recording.frames)

    def _choose_languages(self, recordings: Sequence[RunningRecording]) -> None:
        started = time.perf_counter()
        for running, language in run_batch(self._languages, recordings, _describe):
            if isinstance(language, Exception):
                running.error = language
            else:
                running.language = language
        share_seconds(recordings, started)

    def _languages(self, recordings: Sequence[RunningRecording]) -> list[str | None]:
        windows = [(running.features, running.language_windows) for running in recordings]
        return self.decoder.choose_languages(windows, [running.language for running in recordings])


def _describe(recordings: Sequence[RunningRecording]) -> str:
    return "this recording" if len(recordings) == 1 else f"{len(recordings)} recordings"


@dataclass(frozen=True)
class SpeechChunk:
    """A span of a recording with speech and the pauses in it, in frames of 10 ms."""

    start: int  # with a margin around the speech, as ``end``
    end: int
    speech_end: int  # end of the last speech


def pack_speech(
    speech: Sequence[tuple[int, int]], clip: tuple[int, int], most: int, margin: int
) -> list[SpeechChunk]:
    """Join neighboring spans of speech into chunks; all arguments are in frames of 10 ms.

    Args:
        speech: Starts and ends, in order, without overlap.
        clip: Start and end of the audio to decode.
        most: Maximum length of a chunk, unless speech without a pause is longer.
        margin: Audio before and after a chunk's speech; chunks do not overlap.
    """
    groups: list[tuple[int, int]] = []
    for start, end in speech:
        start, end = max(start, clip[0]), min(end, clip[1])
        if start >= end:
            continue
        if groups and end - groups[-1][0] <= most - 2 * margin:
            groups[-1] = groups[-1][0], end
        else:
            groups.append((start, end))
    middles = [(end + start) // 2 for (_, end), (start, _) in zip(groups, groups[1:], strict=False)]
    edges = [clip[0], *middles, clip[1]]
    return [
        SpeechChunk(max(start - margin, before), min(end + margin, after), end)
        for (start, end), before, after in zip(groups, edges, edges[1:], strict=False)
    ]


class ChunkedLongForm(LongForm):
    """Decodes recordings of any length, up to ``batch_size`` chunks of speech per batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parameters = self.options.vad_parameters
        most_s = parameters.max_speech_duration_s or math.inf
        self.longest = round(min(most_s * FRAMES_PER_S, self.decoder.window_frames))
        self.margin = round(min(parameters.speech_pad_ms / 1000 * FRAMES_PER_S, self.longest / 4))
        longest_s = (self.longest - 2 * self.margin) / FRAMES_PER_S
        self.find_speech = SpeechDetector(parameters, longest_s)

    def __call__(self, recordings: Iterable[LongRecording]) -> Iterator[LongFormStep]:
        """Decode as ``LongForm``; read recordings when a batch has room for their chunks."""
        waiting, chunks = iter(recordings), []
        while True:
            while len(chunks) < self.most_windows and (recording := next(waiting, None)):
                begun = self._begin(recording)
                if begun.done:
                    yield begun.step()
                else:
                    chunks += begun.passages
            if not chunks:
                return
            batch = chunks[: self.most_windows]
            self.windows.step(batch)
            decoded = {id(chunk.recording): chunk.recording for chunk in batch}
            yield from [running.step() for running in decoded.values()]
            chunks = [chunk for chunk in chunks if chunk.next() is not None]

    def _add_passages(self, running: RunningRecording, recording: LongRecording) -> None:
        """Add a passage for each chunk within ``clip_timestamps``, and choose the language."""
        spans_s, frames = self.find_speech(running.speech), recording.frames
        speech = [(math.floor(a * FRAMES_PER_S), math.ceil(b * FRAMES_PER_S)) for a, b in spans_s]
        chunks = [
            chunk
            for start, end in clips_in_frames(self.options.clip_timestamps, frames)
            for chunk in pack_speech(speech, (start, min(end, frames)), self.longest, self.margin)
        ]
        if not chunks:
            logger.warning(f"{recording.name}: no speech in {running.duration_s:.1f} s")
            return
        running.features, speech_end_s = self.decoder.features(recording.samples), 0.0
        for chunk in chunks:
            last_frame = max(chunk.speech_end - SHORTEST_REST_FRAMES, chunk.start + 1)
            self.windows.begin(running, [(chunk.start, chunk.end)], last_frame, speech_end_s)
            speech_end_s = chunk.speech_end / FRAMES_PER_S
        passages = running.passages[: self.options.language_detection_segments]
        first = running.features, [passage.window.next() for passage in passages]
        (running.language,) = self.decoder.choose_languages([first], [running.language])
