"""Decodes a batch of windows: prompts, attempts, exceptions and statistics."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from espnet_medusa.data.audio.voice_activity import MARGIN_S, PAUSE_S, SpeechActivity
from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.longform.draft_text import WindowDrafts
from espnet_medusa.inference.longform.early_ends import find_early_ends
from espnet_medusa.inference.longform.long_form_options import REPETITION, LongFormOptions
from espnet_medusa.inference.longform.moving_window import Align, History, MovingWindow
from espnet_medusa.inference.longform.recording import LongRecording, Passage, Row, RunningRecording
from espnet_medusa.inference.longform.segment import Segment
from espnet_medusa.inference.longform.window import (
    FRAMES_PER_S,
    Clock,
    Window,
    WindowDecoding,
    trace_window,
)
from espnet_medusa.inference.longform.word_times import TimedWord
from espnet_medusa.inference.smaller_batches import run_batch
from espnet_medusa.networks.whisper.transcript import TranscriptText

logger = logging.getLogger(__name__)

LEAST_PROBABILITY = 0.5  # of a window's language that replaces the one before

Decoded = tuple[WindowDecoding, Align | None]
PassageWindow = tuple[Passage, Window]


@dataclass(frozen=True)
class Attempt:
    temperature: float = 0.0  # above 0: sampling
    timestamps: bool = True  # whether segments get times
    stop_repetitions: bool = False  # whether a text that repeats itself may end early


class WindowDecoder(Protocol):
    """A model that decodes windows, such as ``WhisperWindows``."""

    window_frames: int  # frames of 10 ms of the model's window
    prompt_tokens: int  # maximum number of tokens of the text before a window
    clock: Clock  # converts timestamps
    text: TranscriptText  # converts tokens to text

    def features(self, samples: np.ndarray) -> Any:
        """Compute features of a recording (samples,); attribute ``frames``: its frames of 10 ms."""

    def encode(self, windows: Sequence[tuple[Any, Window]]) -> Any:
        """Encode U windows, each with its recording's features."""

    def detects(self, language: str | None) -> bool:
        """Return whether the language of such recordings is detected; None: that of the options."""

    def choose_languages(
        self, windows: Sequence[tuple[Any, Sequence[Window]]], languages: Sequence[str | None]
    ) -> list[str | None]:
        """Return U language codes; for ``detect``, the most probable one of all its windows."""

    def detect(self, encoded: Any) -> list[tuple[str, float]]:
        """Return the most probable language of each window, and its probability."""

    def decode(
        self, encoded: Any, rows: Sequence[Row], attempt: Attempt
    ) -> list[tuple[WindowDecoding, DecodingStatistics]]:
        """Decode some rows of ``encoded``."""

    def text_ends_s(
        self, encoded: Any, rows: Sequence[Row], texts: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return when texts without timestamps end."""

    def align(
        self, encoded: Any, row: int, frames: int, language: str | None, tokens: Sequence[int]
    ) -> list[TimedWord]:
        """Return words and times of text tokens; the window has ``frames`` of 10 ms."""


@dataclass(frozen=True)
class WindowSteps:
    """Begins passages, and decodes the next window of each."""

    decoder: WindowDecoder
    options: LongFormOptions  # prompts, fallback and word times

    def start(self, recording: LongRecording) -> RunningRecording:
        """Return the state of a recording before its first passage."""
        running = RunningRecording(recording.key, recording.duration_s, recording.language)
        if recording.draft_text is not None:
            decoder = self.decoder
            parts = decoder.text, decoder.clock, decoder.prompt_tokens
            running.drafts = WindowDrafts(recording.draft_text, *parts)
        return running

    def check_language(self, running: RunningRecording) -> None:
        """Choose whether the language of each window is detected; raise InputError if it is not.

        Recordings with a given language of their own keep it.
        """
        given, detected = running.language, self.decoder.detects(running.language)
        running.multilingual = self.options.multilingual and detected
        if self.options.multilingual and given is None and not detected:
            raise InputError(
                "multilingual: true; allowed with language: detect and a multilingual model"
            )

    def _detect_languages(self, encoded: Any, passages: Sequence[Passage]) -> None:
        """With ``multilingual``, set each passage's language to that of its window.

        An improbable language does not replace that of the window before.
        """
        if not any(passage.recording.multilingual for passage in passages):
            return
        for passage, found in zip(passages, self.decoder.detect(encoded), strict=True):
            language, probability = found
            if passage.recording.multilingual and probability >= LEAST_PROBABILITY:
                passage.change_language(language)

    def detect_speech(self, running: RunningRecording, recording: LongRecording) -> None:
        """Find the speech, if an option needs it, and choose whether segments get times."""
        options = self.options
        if options.detects_speech:
            running.speech = SpeechActivity.of(recording.samples)
        short = recording.frames <= self.decoder.window_frames and not options.vad_filter
        without = options.without_timestamps
        without = short if without is None else without
        running.timestamps = bool(self.decoder.clock.count) and not without

    def begin(
        self,
        recording: RunningRecording,
        clips: list[tuple[int, int]],
        last_frame: int,
        last_speech_s: float = 0.0,
    ) -> None:
        """Add a passage to a recording; the speech before it ends at ``last_speech_s``.

        ``clips`` and ``last_frame`` are those of ``MovingWindow`` and ``Passage``.
        """
        decoder, options, prompt = self.decoder, self.options, self.options.initial_prompt
        initial = () if prompt is None else tuple(decoder.text.encode(prompt))
        history = History(initial, decoder.prompt_tokens, options.carry_initial_prompt)
        of_recording = recording.features.frames, decoder.window_frames, decoder.clock, decoder.text
        window = MovingWindow(*of_recording, options, history, clips, last_speech_s)
        recording.passages.append(Passage(recording, window, last_frame))

    def step(self, passages: Sequence[Passage]) -> None:
        """Decode a window of each passage; an exception becomes its recording's ``error``."""
        started = time.perf_counter()
        pairs = [(passage, self._skip_silence(passage, passage.next())) for passage in passages]
        pairs = [(passage, window) for passage, window in pairs if window is not None]
        for (passage, window), decoded in run_batch(self._decode, pairs, _describe):
            try:
                if isinstance(decoded, Exception):
                    raise decoded
                segments = passage.window.take(window, *decoded)
                passage.segments += segments
                self._write_on(passage, segments)
                if any(segment.tokens for segment in segments):
                    passage.recording.score += decoded[0].log_probability
            except Exception as error:  # also of word alignment
                passage.recording.error = error
        share_seconds([passage.recording for passage in passages], started)

    def _write_on(self, passage: Passage, segments: Sequence[Segment]) -> None:
        """Continue the recording's draft text after the segments of a window."""
        if passage.recording.drafts is not None:
            tokens = [token for segment in segments for token in segment.tokens]
            passage.recording.drafts.written(self.decoder.text.text_tokens(tokens))

    def _skip_silence(self, passage: Passage, window: Window | None) -> Window | None:
        """Return the window, moved past a long pause at its start; None if it has no new speech.

        With the preceding text as prompt, Whisper may repeat this text in such a pause.
        """
        speech = passage.recording.speech
        if window is None or not self.options.skip_silence:
            return window
        start_s = speech.new_speech_s(window.start_s, window.end_s)
        if start_s is None:
            passage.window.skip(window)
            return None
        if window.seek > 0 and start_s - window.start_s >= PAUSE_S:
            passage.window.seek = round(FRAMES_PER_S * (start_s - MARGIN_S))
            return passage.next()
        return window

    def _decode(self, pairs: Sequence[PassageWindow]) -> list[Decoded]:
        """Return for each window the result of ``choose_attempt``, and its word aligner."""
        if not pairs:
            return []
        passages = [passage for passage, _ in pairs]
        windows = [(p.recording.features, p.recording.with_pauses(window)) for p, window in pairs]
        encoded = self.decoder.encode(windows)
        self._detect_languages(encoded, passages)
        attempts: list[list[WindowDecoding]] = [[] for _ in pairs]
        counts = [DecodingStatistics() for _ in pairs]
        rows, temperatures = [*range(len(pairs))], self.options.temperatures
        for temperature in temperatures:
            # The text of the last attempt may be used, even if it repeats itself.
            how = Attempt(temperature, stop_repetitions=temperature != temperatures[-1])
            results = self._attempt(encoded, passages, rows, how)
            for row, (decoding, statistics) in zip(rows, results, strict=True):
                attempts[row].append(decoding)
                counts[row] += statistics
            rows = [row for row in rows if attempts[row][-1].has_failed(self.options)]
            if not rows:
                break
        decodings = [choose_attempt(one, self.options) for one in attempts]
        ended = decodings
        timed = self.decoder.clock.count and self.options.detects_speech
        if self.options.without_timestamps is None and timed:
            text_ends_s = partial(self.decoder.text_ends_s, encoded)
            ended = find_early_ends(pairs, decodings, text_ends_s)
        # From here on nothing fails, so that no window is counted twice.
        for row, (passage, window) in enumerate(pairs):
            passage.recording.statistics += counts[row]
            if decodings[row].trace is not None:
                trace = trace_window(window, attempts[row], decodings[row])
                passage.recording.traces.append(trace)
        align = partial(self.decoder.align, encoded) if self.options.word_timestamps else None
        aligners = [
            align and partial(align, row, window.frames, passage.row(row).language)
            for row, (passage, window) in enumerate(pairs)
        ]
        return [*zip(ended, aligners, strict=True)]

    def _attempt(
        self, encoded: Any, passages: Sequence[Passage], rows: Sequence[int], how: Attempt
    ) -> list[tuple[WindowDecoding, DecodingStatistics]]:
        """Decode rows; those with timestamps and those without are separate batches."""
        results: dict[int, tuple[WindowDecoding, DecodingStatistics]] = {}
        for timestamps in (True, False):
            batch = [row for row in rows if passages[row].recording.timestamps == timestamps]
            if not batch:
                continue
            chosen = [passages[row].row(row) for row in batch]
            decoded = self.decoder.decode(encoded, chosen, replace(how, timestamps=timestamps))
            results |= zip(batch, decoded, strict=True)
        return [results[row] for row in rows]


def choose_attempt(attempts: Sequence[WindowDecoding], options: LongFormOptions) -> WindowDecoding:
    """Return the last attempt; for ``repetition``, the least repetitive one if the last failed."""
    if options.fallback_on == REPETITION and attempts[-1].has_failed(options):
        return min(attempts, key=lambda attempt: attempt.compression_ratio)
    return attempts[-1]


def share_seconds(recordings: Sequence[RunningRecording], started: float) -> None:
    """Add the time since ``started`` to the recordings, in equal shares."""
    seconds = (time.perf_counter() - started) / max(len(recordings), 1)
    for recording in recordings:
        recording.statistics.total_seconds += seconds


def _describe(pairs: Sequence[PassageWindow]) -> str:
    return "this window" if len(pairs) == 1 else f"{len(pairs)} windows"
