"""Decode the utterances of one job; a bad one stops nobody else."""

import argparse
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from espnet2.tasks.asr import ASRTask

from espnet_medusa.audio.reader import TooLongError, check_audio, read_audio
from espnet_medusa.errors import InputError
from espnet_medusa.inference.batches import (
    FRAMES_PER_S,
    Utterance,
    decode_together,
    log_traceback,
    make_batches,
    one_line,
    read_pools,
)
from espnet_medusa.inference.decoding import Decoding
from espnet_medusa.inference.journal import Decoded, Failed, Hypothesis, Journal, Outcome
from espnet_medusa.inference.long_utterances import LongUtterances
from espnet_medusa.inference.progress import Progress
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.timing_log import log_decoded
from espnet_medusa.inference.whisper_windows import why_not_long_form
from espnet_medusa.kaldi.table import DataProblem, read_table, scan_table
from espnet_medusa.longform.options import LongFormOptions
from espnet_medusa.longform.segments_dir import SEGMENTS, write_segments_dir
from espnet_medusa.model.whisper_encoder import WHISPER_WINDOW
from espnet_medusa.whisper.log_mel import HOP_SAMPLES

logger = logging.getLogger(__name__)

AUDIO_TYPES = ("sound", "kaldi_ark")

Preprocess = Callable[[str, dict[str, np.ndarray]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class JobInput:
    """What a job decodes.

    Attributes:
        keys: Utterance ids, in order.
        entries: Utterance id to the value in wav.scp.
        problems: Utterance id to what is wrong with its line.
        languages: Utterance id to code, where it differs from the search's own.
    """

    keys: list[str]
    entries: Mapping[str, str]
    problems: Mapping[str, str]
    languages: Mapping[str, str] = field(default_factory=dict)


def read_input(
    data_path_and_name_and_type: Sequence[tuple[str, str, str]],
    key_file: str | None,
    utt2lang: str | None = None,
) -> JobInput:
    """Read wav.scp and the key file.

    Args:
        data_path_and_name_and_type: ESPnet's option; exactly one ``FILE,speech,TYPE``.
        key_file: Ids to decode, first column; None takes all of wav.scp.
        utt2lang: Languages of utterances; None: the search's own for all.

    Raises:
        InputError: A file is missing or empty, or the option names other data.
    """
    wanted = [entry for entry in data_path_and_name_and_type if entry[1] == "speech"]
    if len(wanted) != 1 or len(data_path_and_name_and_type) != 1:
        given = " ".join(",".join(entry) for entry in data_path_and_name_and_type)
        raise InputError(f"data_path_and_name_and_type: {given!r}; allowed: one FILE,speech,TYPE")
    path, _, kind = wanted[0]
    if kind not in AUDIO_TYPES:
        raise InputError(
            f"data_path_and_name_and_type: type {kind!r}; allowed: {', '.join(AUDIO_TYPES)}"
        )
    audio = scan_table(path)
    problems = _by_id(audio.problems)
    keys = [*audio.entries]
    if key_file is not None:
        listed = scan_table(key_file, require_value=False)
        keys = [*listed.entries]
        missing = [key for key in keys if key not in audio.entries and key not in problems]
        # Other jobs name the bad lines of wav.scp that they were given.
        problems = {key: text for key, text in problems.items() if key in ("", *keys)}
        problems |= _by_id(listed.problems)
        problems |= {key: f"{path}: {key}: missing; add its line" for key in missing}
    if "" in problems:
        raise InputError(problems[""])
    keys += [key for key in problems if key not in keys]
    languages = {} if utt2lang is None else read_table(utt2lang)
    return JobInput(keys, audio.entries, problems, languages)


def _by_id(problems: Sequence[DataProblem]) -> dict[str, str]:
    # The id of an unreadable line is its number.
    return {problem.id.replace(" ", "_"): str(problem) for problem in problems}


def build_preprocess(args: argparse.Namespace) -> Preprocess | None:
    """ESPnet's preprocessing function as it was trained with.

    Args:
        args: Of training; what belongs to its utterances alone need not be there any more.
    """
    (getattr(args, "preprocessor_conf", None) or {}).pop("utt2lang", None)
    return ASRTask.build_preprocess_fn(args, False)


class JobDecoder(Protocol):
    """What decodes the utterances of a job: this process (``UtteranceDecoder``), or others.

    Attributes:
        sample_rate_hz: Of the model.
    """

    sample_rate_hz: int

    def decode(self, job: JobInput) -> Iterator[Outcome]:
        """Each utterance's outcome once, in any order."""
        ...


def decode_job(decoder: JobDecoder, job: JobInput, journal: Journal) -> int:
    """Decode what the journal does not hold yet, and write the outputs.

    Args:
        decoder: Decodes.
        job: Ids and audio.
        journal: Gets results and failures.

    Returns:
        Number of utterances without a result.
    """
    todo = [key for key in job.keys if key not in journal.decoded]
    resumed = [key for key in job.keys if key in journal.decoded]
    if resumed:
        logger.info(f"resumed: {len(resumed)} of {len(job.keys)} utterances were decoded before")
    for key in resumed:
        log_whole(journal.decoded[key], decoder.sample_rate_hz)
    with Progress(len(job.keys), len(resumed)) as progress:
        for outcome in decoder.decode(replace(job, keys=todo)):
            _record(outcome, journal)
            progress.update()
    journal.write_outputs(job.keys)
    done = [journal.decoded[key] for key in job.keys if key in journal.decoded]
    segments = {one.key: one.segments for one in done if one.segments is not None}
    write_segments_dir(journal.folder / SEGMENTS, job.entries, segments)
    return len(journal.failed)


def _record(outcome: Outcome, journal: Journal) -> None:
    if isinstance(outcome, Decoded):
        journal.add(outcome)
    else:
        journal.fail(outcome.key, outcome.reason)
        logger.error(f"failed: {journal.failed[outcome.key]}")


def log_whole(decoded: Decoded, sample_rate_hz: int) -> None:
    """The two lines of an utterance that was decoded window by window, elsewhere, or before.

    The log of an earlier run this one has written over.
    """
    seconds = decoded.statistics.total_seconds
    if seconds and decoded.nbest:
        samples = round(decoded.statistics.audio_seconds * sample_rate_hz)
        best = "".join(decoded.nbest[0].token)
        log_decoded(logger, samples, best, time.time() - seconds, seconds)


@dataclass(frozen=True)
class UtteranceDecoder:
    """Audio files to results, in this process.

    Utterances beyond the model's window come last.

    Attributes:
        speech2text: Decodes.
        allow_pipes: Whether commands in wav.scp may run.
        preprocess: ESPnet's preprocessing function ``(id, data) -> data``, or None.
        batch_size: Most utterances that are decoded together.
        max_batch_frames: Most frames of 10 ms of a batch, rows times the longest; None: no limit.
        long_form: How audio beyond the model's window is decoded; None: it is not.
    """

    speech2text: Speech2Text
    allow_pipes: bool = False
    preprocess: Preprocess | None = None
    batch_size: int = 1
    max_batch_frames: int | None = None
    long_form: LongFormOptions | None = None

    @property
    def sample_rate_hz(self) -> int:
        """Of the model."""
        return self.speech2text.sample_rate_hz

    def decode(self, job: JobInput) -> Iterator[Outcome]:
        """Each utterance's result, or the reason why it has none."""
        too_long: dict[str, TooLongError] = {}
        unread: list[Failed] = []
        for pool in read_pools(self._read(job, job.keys, unread, too_long), self.batch_size):
            yield from _taken(unread)
            lengths = [utterance.frames for utterance in pool]
            for batch in make_batches(lengths, self.batch_size, self.max_batch_frames):
                utterances = [pool[index] for index in batch]
                for utterance, found in decode_together(self.speech2text.decode, utterances):
                    yield _outcome(job, utterance.key, found)
        yield from _taken(unread)
        if too_long:
            yield from self._decode_long(job, too_long)

    def _read(
        self,
        job: JobInput,
        keys: Iterable[str],
        unread: list[Failed],
        too_long: dict[str, TooLongError] | None = None,
    ) -> Iterator[Utterance]:
        """Read one utterance after the other.

        Args:
            job: Where their audio is.
            keys: Their ids.
            unread: Gets those that cannot be read.
            too_long: Gets those beyond the model's window; None: they are read, too.
        """
        for key in keys:
            if key in job.problems:
                unread.append(Failed(key, job.problems[key]))
                continue
            try:
                utterance = read_utterance(
                    self.speech2text,
                    key,
                    job.entries[key],
                    self.allow_pipes,
                    self.preprocess,
                    any_length=too_long is None,
                )
            except TooLongError as error:
                too_long[key] = error.with_traceback(None)  # which may hold the audio
            except Exception as error:  # whatever it was, the others go on
                unread.append(_outcome(job, key, error))
            else:
                yield replace(utterance, language=job.languages.get(key))

    def _decode_long(
        self, job: JobInput, too_long: Mapping[str, TooLongError]
    ) -> Iterator[Outcome]:
        """Decode what is beyond the model's window, or say why it is not."""
        reason = why_not_long_form(self.speech2text)
        if self.long_form is None or reason is not None:
            for key, error in too_long.items():
                yield _outcome(job, key, _refusal(error, self.long_form, reason))
            return
        limits = self.batch_size, self.max_batch_frames
        long = LongUtterances(self.speech2text, self.long_form, *limits)
        unread: list[Failed] = []
        for key, found in long.decode(self._read(job, too_long, unread)):
            yield from _taken(unread)
            outcome = _outcome(job, key, found)
            if isinstance(outcome, Decoded):
                log_whole(outcome, self.sample_rate_hz)
            yield outcome
        yield from _taken(unread)


def _taken(unread: list[Failed]) -> Iterator[Failed]:
    while unread:
        yield unread.pop(0)


def _outcome(job: JobInput, key: str, found: Decoding | Exception) -> Outcome:
    """What the journal holds of an utterance."""
    if isinstance(found, Exception):
        log_traceback(found)
        return Failed(key, f"{job.entries[key]}: {key}: {one_line(found)}")
    if not found.results:
        reason = "no hypothesis ended; allow shorter ones with a smaller minlenratio"
        return Failed(key, f"{job.entries[key]}: {key}: {reason}")
    nbest = [
        Hypothesis(text, list(token), list(token_int), str(hypothesis.score))
        for text, token, token_int, hypothesis in found.results
    ]
    return Decoded(key, nbest, found.statistics, found.language, found.segments)


def _refusal(
    error: TooLongError, options: LongFormOptions | None, reason: str | None
) -> TooLongError:
    """Why audio beyond the model's window is not decoded, and what to do."""
    if reason is None:
        return TooLongError(error.message, f"{error.remedy}, or decode with longform: true")
    if options is None:
        return error
    return TooLongError(error.message, f"{error.remedy}; longform: {reason}")


class AudioModel(Protocol):
    """A model as far as reading its audio goes."""

    asr_model: torch.nn.Module
    sample_rate_hz: int
    window_s: float | None


def read_utterance(
    model: AudioModel,
    key: str,
    entry: str,
    allow_pipes: bool,
    preprocess: Preprocess | None = None,
    any_length: bool = False,
) -> Utterance:
    """One utterance's audio, checked and preprocessed.

    Args:
        model: Says which audio it takes.
        key: Utterance id.
        entry: Its value in wav.scp.
        allow_pipes: Whether a command there may run.
        preprocess: ESPnet's preprocessing function, or None.
        any_length: Whether it may be longer than the model's window.

    Raises:
        TooLongError: It is, and may not.
        ValueError: The audio cannot be read or does not suit the model.
    """
    rate_hz, window_s = model.sample_rate_hz, None if any_length else model.window_s
    samples, read_rate_hz = read_audio(entry, allow_pipes=allow_pipes, max_duration_s=window_s)
    check_audio(
        samples,
        read_rate_hz,
        expected_rate_hz=rate_hz,
        max_duration_s=window_s,
        min_samples=HOP_SAMPLES,
    )
    return make_utterance(model, key, samples, preprocess)


def make_utterance(
    model: AudioModel, key: str, samples: np.ndarray, preprocess: Preprocess | None = None
) -> Utterance:
    """Preprocess audio that suits the model.

    Args:
        model: Whose encoder reads it.
        key: Utterance id.
        samples: (samples,) at the model's rate.
        preprocess: ESPnet's preprocessing function, or None.
    """
    data = {"speech": samples.astype(np.float32)}
    if preprocess is not None:
        data = preprocess(key, data)
    frames = len(data["speech"]) * FRAMES_PER_S // model.sample_rate_hz
    if getattr(model.asr_model.encoder, "window", None) == WHISPER_WINDOW:
        frames = round(model.window_s * FRAMES_PER_S)
    return Utterance(key, data["speech"], frames)
