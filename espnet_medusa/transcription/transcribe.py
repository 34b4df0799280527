"""Audio files to text, one result after the other; a bad file stops nobody else."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from espnet_medusa.audio.reader import TooLongError, check_audio, read_audio, resample
from espnet_medusa.audio.source import AudioError
from espnet_medusa.inference.batches import (
    Utterance,
    decode_together,
    log_traceback,
    make_batches,
    one_line,
    read_pools,
)
from espnet_medusa.inference.decoding import Decoding
from espnet_medusa.inference.job import Preprocess, build_preprocess, make_utterance
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.whisper_windows import check_long_form, why_not_long_form
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.recording import LongRecording
from espnet_medusa.options import build_options
from espnet_medusa.transcription.open_model import find_model
from espnet_medusa.transcription.probed import ProbedRecording, probe_recording
from espnet_medusa.transcription.recordings import Recording, find_recordings
from espnet_medusa.transcription.transcript import Transcript
from espnet_medusa.whisper.log_mel import HOP_SAMPLES

logger = logging.getLogger(__name__)

TOO_LONG = "cut it at pauses, see docs/long_audio.md"


def transcribe(
    audio: str | Path | Iterable[str | Path],
    model: str,
    *,
    model_file: str | None = None,
    device: str | None = None,
    batch_size: int = 8,
    timestamps: bool = False,
    **options,
) -> Iterator[Transcript]:
    """Transcribe audio files of any length.

    Args:
        audio: Files, folders, patterns: see ``find_recordings``.
        model: An experiment or a Whisper: see ``find_model``.
        model_file: Weights of the experiment; None: what conversion or training leaves.
        device: ``cpu`` or ``cuda``; None: cuda where there is one.
        batch_size: Most files that are decoded together; with ``vad_filter`` most windows.
        timestamps: Whether short files, too, shall have segments with times; those beyond the
            model's window always have.
        options: As ``Speech2Text``'s, such as ``language``, ``beam_size``, ``decoder_precision``;
            and those of ``LongFormOptions``, such as ``initial_prompt``.

    Returns:
        Transcripts as they are made, one of each file; those without a text say why.

    Raises:
        InputError: There is no audio at all, or the model or an option is not usable.
    """
    recordings = find_recordings([audio] if isinstance(audio, str | Path) else audio)
    names = [field.name for field in fields(LongFormOptions)]
    given = {name: options.pop(name) for name in names if name in options}
    long_form = build_options(LongFormOptions, given, "transcribe")
    files = find_model(model, model_file)
    speech2text = Speech2Text(
        files.config,
        files.weights,
        device=choose_device(device),
        batch_size=batch_size,
        **{"language": files.language} | choose_search(options),
    )
    speech2text.release_weights(long_form)
    preprocess = build_preprocess(speech2text.asr_train_args)
    transcriber = Transcriber(speech2text, preprocess, batch_size, long_form, timestamps)
    return transcriber(map(probe_recording, recordings))


def choose_search(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with greedy search where nothing asks for a beam, and a beam of 5 where no size.

    The decoder scores alone unless asked: a Whisper has no CTC branch.
    """
    by_size = "beam" if options.get("beam_size", 1) > 1 else "greedy"
    return {"search": by_size, "beam_size": 5, "ctc_weight": 0.0} | dict(options)


def choose_device(device: str | None) -> str:
    """The GPU where there is one and nothing else is asked for."""
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def read_recording(probed: ProbedRecording, rate_hz: int, window_s: float | None) -> np.ndarray:
    """Samples as a model takes them: of its rate, channels averaged, which is said once a file.

    Args:
        probed: A file with its header.
        rate_hz: The model's.
        window_s: The most that it hears at a time; None: any length.

    Returns:
        (samples,) float32 in [-1, 1].

    Raises:
        TooLongError: It is longer.
        AudioError: The file cannot be read.
    """
    path, header = probed.recording.path, probed.header
    if isinstance(header, AudioError):
        raise header
    _check_length(path, header.duration_s, window_s)
    samples, read_rate_hz = read_audio(str(path))
    _check_length(path, len(samples) / read_rate_hz, window_s)
    if header.n_channels > 1:
        logger.warning(f"{path}: its {header.n_channels} channels are mixed down to one")
    samples = resample(samples, read_rate_hz, rate_hz)
    check_audio(samples, rate_hz, min_samples=HOP_SAMPLES)
    return samples


def _check_length(path: Path, duration_s: float | None, window_s: float | None) -> None:
    if None not in (duration_s, window_s) and duration_s > window_s:
        raise TooLongError(
            f"{path}: lasts {duration_s:.2f} s, more than the {window_s:g} s that the model hears "
            "at a time",
            TOO_LONG,
        )


@dataclass(frozen=True)
class Transcriber:
    """A model and how its audio is read.

    Attributes:
        speech2text: Decodes.
        preprocess: ESPnet's preprocessing function of audio, or None.
        batch_size: Most recordings that are decoded together, or windows of their speech.
        options: Of audio beyond the model's window.
        timestamps: Whether all audio is decoded as if it were, with times.
        on_decoded: Called with seconds of audio as they are done.

    Raises:
        InputError: The model does not write timestamps, and they are asked for.
    """

    speech2text: Speech2Text
    preprocess: Preprocess | None = None
    batch_size: int = 1
    options: LongFormOptions = LongFormOptions()
    timestamps: bool = False
    on_decoded: Callable[[float], None] = lambda seconds: None

    def __post_init__(self) -> None:
        if self.in_windows:
            check_long_form(self.speech2text, self.options)

    @property
    def in_windows(self) -> bool:
        """Whether short audio goes the way of long audio, too."""
        return self.timestamps or self.options.needs_windows

    def __call__(self, recordings: Iterable[ProbedRecording]) -> Iterator[Transcript]:
        """Transcripts as they are made: recordings of like lengths are decoded together.

        Each recording has one; those without a text say why. Those beyond the model's window, or
        all with timestamps, come last.
        """
        by_path: dict[str, Recording] = {}
        failed: list[Transcript] = []
        long: list[ProbedRecording] = []
        if self.in_windows:
            long, recordings = [*recordings], []
        for pool in read_pools(self._read(recordings, by_path, failed, long), self.batch_size):
            yield from self._take(failed)
            for batch in make_batches([one.frames for one in pool], self.batch_size):
                together = [pool[index] for index in batch]
                for utterance, outcome in decode_together(self.speech2text.decode, together):
                    self.on_decoded(len(utterance.speech) / self.speech2text.sample_rate_hz)
                    yield self._transcript(by_path.pop(utterance.key), outcome)
        yield from self._take(failed)
        if long:
            yield from self._long(long)

    def _long(self, recordings: Sequence[ProbedRecording]) -> Iterator[Transcript]:
        """Segments of recordings of any length."""
        failed: list[Transcript] = []
        done_s: dict[Recording, float] = {}
        run = self.speech2text.long_form(self.options, self.batch_size)
        for step in run(self._read_long(recordings, failed)):
            yield from self._take(failed)
            found, recording = step.recording, step.recording.key
            self.on_decoded(found.done_s - done_s.get(recording, 0.0))
            done_s[recording] = found.done_s
            if not step.done:
                continue
            if found.error is not None:
                yield self._failure(recording, found.error)
                continue
            yield Transcript(
                recording,
                found.text,
                found.language,
                found.statistics,
                segments=tuple(found.segments),
            )
        yield from self._take(failed)

    def _read_long(
        self, recordings: Iterable[ProbedRecording], failed: list[Transcript]
    ) -> Iterator[LongRecording]:
        own = self.speech2text
        for probed in recordings:
            recording, path = probed.recording, str(probed.recording.path)
            try:
                samples = read_recording(probed, own.sample_rate_hz, None)
                utterance = make_utterance(own, path, samples, self.preprocess)
            except Exception as error:  # whatever it was, the others go on
                failed.append(self._failure(recording, error))
            else:
                yield LongRecording(recording, utterance.speech, name=path)

    @staticmethod
    def _take(failed: list[Transcript]) -> Iterator[Transcript]:
        while failed:
            yield failed.pop(0)

    def _read(
        self,
        recordings: Iterable[ProbedRecording],
        by_path: dict[str, Recording],
        failed: list[Transcript],
        long: list[ProbedRecording],
    ) -> Iterator[Utterance]:
        """Those that fit into the window; the others are put aside where the model takes them."""
        own = self.speech2text
        takes_long = why_not_long_form(own) is None
        for probed in recordings:
            recording, key = probed.recording, str(probed.recording.path)
            try:
                samples = read_recording(probed, own.sample_rate_hz, own.window_s)
                utterance = make_utterance(own, key, samples, self.preprocess)
            except Exception as error:  # whatever it was, the others go on
                if isinstance(error, TooLongError) and takes_long:
                    long.append(probed)
                else:
                    failed.append(self._failure(recording, error))
            else:
                by_path[key] = recording
                yield utterance

    def _transcript(self, recording: Recording, outcome: Decoding | Exception) -> Transcript:
        if isinstance(outcome, Exception):
            return self._failure(recording, outcome)
        if not outcome.results:
            return Transcript(recording, error=f"{recording.path}: no hypothesis ended")
        text, _, _, hypothesis = outcome.results[0]
        language = self._language(hypothesis.yseq.tolist())
        text = " ".join((text or "").split())
        return Transcript(recording, text, language, outcome.statistics)

    def _language(self, tokens: Sequence[int]) -> str | None:
        """The code in a prompt."""
        whisper = self.speech2text.whisper
        languages = {} if whisper is None else whisper.tokens.languages
        return next((code for code, token in languages.items() if token in tokens[:2]), None)

    def _failure(self, recording: Recording, error: Exception) -> Transcript:
        log_traceback(error)
        reason = one_line(error)
        if str(recording.path) not in reason:
            reason = f"{recording.path}: {reason}"
        return Transcript(recording, error=reason)
