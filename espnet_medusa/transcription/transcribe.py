"""Transcribe audio files, and write the results to a folder."""

import logging
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch

from espnet_medusa.data.audio.reading import TRANSCRIBING, AudioReading
from espnet_medusa.data.audio.source import is_pipe
from espnet_medusa.data.errors import InputError, list_some
from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.kaldi.table import write_table
from espnet_medusa.data.options import build_options, check_positive
from espnet_medusa.data.progress import Progress
from espnet_medusa.inference.job import JobInput, decode_remaining, resume
from espnet_medusa.inference.journal import Journal, write_summary
from espnet_medusa.inference.longform.draft_text import DraftText
from espnet_medusa.inference.longform.long_form_options import LongFormOptions
from espnet_medusa.inference.reader import build_audio_preprocess
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.inference.utterance_decoder import UtteranceDecoder
from espnet_medusa.inference.whisper_windows import why_not_long_form
from espnet_medusa.transcription.batch_size import default_batch_size
from espnet_medusa.transcription.defaults import WINDOWS, with_defaults
from espnet_medusa.transcription.formats import FORMATS, Transcript
from espnet_medusa.transcription.open_model import find_model
from espnet_medusa.transcription.recordings import TEXT, AudioFileReader, Recording, find_recordings
from espnet_medusa.transcription.subtitles import AS_SEGMENTS, SUBTITLES, SubtitleOptions

logger = logging.getLogger(__name__)
Options = TypeVar("Options")


def transcribe(
    audio: str | os.PathLike | Iterable[str | os.PathLike],
    model: str,
    *,
    model_file: str | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    timestamps: bool = False,
    draft_texts: Mapping[str | os.PathLike, DraftText] | None = None,
    **options: Any,
) -> Iterator[Transcript]:
    """Transcribe audio files of any length, with the defaults of ``espnet-medusa-transcribe``.

    These are a beam of 5 in int8 (if our CPU kernels run) or float16 (on a GPU), fallback if a text
    repeats itself, and ``skip_silence``; ``Speech2Text`` has ESPnet's.

    Args:
        audio: Files, folders, patterns: see ``find_recordings``.
        model: An experiment or a Whisper: see ``find_model``.
        model_file: Weights of the experiment; None: the file that conversion or training wrote.
        device: ``cpu`` or ``cuda``; None: cuda if there is a GPU.
        batch_size: Maximum number of files (``vad_filter``: of windows) decoded together; None: 8
            on a CPU, as many as fit into memory (at most 32) on a GPU.
        timestamps: Whether all files have segments; otherwise only files longer than the model's
            window, and all files with ``vad_filter``.
        draft_texts: Texts of files that may be right, such as earlier results, by path or by name
            without suffix: plain, or segments (start and end in seconds, text). None: no texts.
        options: Options of ``Speech2Text``, such as ``language``, ``beam_size``,
            ``decoder_precision``; of ``LongFormOptions``, such as ``initial_prompt``; and of
            ``AudioReading``, such as ``on_bad_audio``.

    Returns:
        One transcript of each file, in the order of decoding; a failed one has the reason.

    Raises:
        InputError: There is no audio at all, or the model or an option is not usable.
    """
    recordings = find_recordings([audio] if isinstance(audio, str | os.PathLike) else audio)
    device = choose_device(device)
    times = {"without_timestamps": False} if timestamps else {}
    *files, language = find_model(model, model_file)
    options = with_defaults(times | options, device, files[1])
    default = options.pop("batch_size")
    long_form = _take(LongFormOptions, options)
    reading = _take(AudioReading, options, asdict(TRANSCRIBING))
    options["language"] = options.get("language") or language
    speech2text = Speech2Text(*files, device=device, mapped=True, **options)
    check_used(speech2text, long_form, defaults=WINDOWS)
    together = default if batch_size is None else batch_size
    decoder = make_decoder(speech2text, together, long_form, reading)
    job, by_key = _make_job(recordings)
    job = _longest_first(job, decoder)
    job = replace(job, draft_texts=_draft_texts(draft_texts or {}, by_key))
    if job.draft_texts:
        speech2text.check_draft_texts()
    return (
        Transcript.of(recording, outcome)
        for outcome in decoder.decode(job)
        for recording in by_key[outcome.key]
    )


def _take(
    kind: type[Options], options: dict[str, Any], defaults: Mapping[str, Any] = {}
) -> Options:
    """Remove the fields of the dataclass ``kind`` from the options, and build it."""
    names = [field.name for field in fields(kind) if field.name in options]
    given = {name: options.pop(name) for name in names}
    return build_options(kind, {**defaults, **given}, "transcribe")


def make_decoder(
    speech2text: Speech2Text,
    batch_size: int | None,
    long_form: LongFormOptions,
    reading: AudioReading = TRANSCRIBING,
) -> UtteranceDecoder:
    """Make a decoder of audio files, and free the weights that it does not need.

    ``batch_size`` None: ``default_batch_size``. Raise InputError if the options need windows, which
    the model or its search does not decode.
    """
    if batch_size is not None:
        check_positive(batch_size, "batch_size")
    speech2text.release_weights(long_form)
    batch_size = batch_size or default_batch_size(speech2text.model)
    preprocess = build_audio_preprocess(speech2text.asr_train_args)
    reader = AudioFileReader(speech2text.model.audio, preprocess, reading=reading)
    in_windows = long_form.needs_windows or why_not_long_form(speech2text.model) is None
    windows = {"long_form": long_form, "all_in_windows": in_windows}
    batches = speech2text.model.batches_per_call(batch_size)
    return UtteranceDecoder(speech2text, reader, batch_size, **windows, batches=batches)


def check_used(
    speech2text: Speech2Text,
    long_form: LongFormOptions,
    refused: Container[str] = (),
    defaults: Mapping[str, Any] = {},
) -> None:
    """Warn if the search writes no timestamps and therefore does not use options of windows.

    Args:
        refused: Options that raise InputError if they are not used.
        defaults: Values that the user has not set, in addition to those of ``LongFormOptions``.
    """
    reason = why_not_long_form(speech2text.model)
    if reason is None or long_form.needs_windows:
        return
    plain, given = vars(LongFormOptions()), vars(long_form) | {"without_timestamps": None}
    # Options that are off need no windows.
    names = [name for name in given if given[name] and given[name] != plain[name]]
    for name in names:
        if name in refused:
            raise InputError(f"{name}: {given[name]}; not used here; {reason}")
    unused = [name for name in names if given[name] != defaults.get(name)]
    if speech2text.model.prompts is not None and len(long_form.temperatures) > 1:
        unused.insert(0, "fallback")
    if unused:
        logger.warning(f"not used here: {', '.join(unused)}; {reason}")


class OutputFolder:
    """A folder with a file for each recording and format, tables of all, and the journal.

    ``formats`` are names in ``FORMATS``, or html, whose files ``write_pages`` writes. ``made_with``
    is that of ``Journal``; None: nothing is resumed. ``overwrite``: earlier results of the given
    recordings are discarded. ``subtitles``: layout of srt and vtt.
    """

    def __init__(
        self,
        folder: Path,
        formats: Sequence[str],
        made_with: dict | None,
        overwrite: bool,
        subtitles: SubtitleOptions = AS_SEGMENTS,
    ):
        self.folder, self.formats, self.overwrite = folder, tuple(formats), overwrite
        self.layouts = dict.fromkeys(SUBTITLES, (subtitles,))
        folder.mkdir(parents=True, exist_ok=True)
        self.journal = None if made_with is None else Journal(folder, made_with)

    def write(self, transcript: Transcript) -> None:
        for name in self.formats:
            if name in FORMATS:
                text = FORMATS[name](transcript, *self.layouts.get(name, ()))
                write_atomically(self._file(transcript, name), text)

    def remove(self, transcript: Transcript) -> None:
        """Remove the files of an earlier run."""
        for name in self.formats:
            path = self._file(transcript, name)
            if os.path.isfile(path):  # False for names that are too long
                path.unlink()

    def _file(self, transcript: Transcript, suffix: str) -> Path:
        return self.folder / f"{transcript.recording.name}.{suffix}"

    def write_tables(self, transcripts: Iterable[Transcript]) -> None:
        """Write the Kaldi table ``text`` and the files of ``write_summary`` for all recordings."""
        by_id = {transcript.recording.id: transcript for transcript in transcripts}
        failed = {key: by_id[key].error for key in sorted(by_id) if by_id[key].error is not None}
        done = {key: transcript for key, transcript in by_id.items() if key not in failed}
        write_table(self.folder / TEXT, {key: done[key].line for key in done})
        entries = {key: os.path.realpath(done[key].recording.path) for key in done}
        # In wav.scp, a path that ends with white space would be another, and with "|" a command.
        odd = [key for key, path in entries.items() if is_pipe(path) or path != path.rstrip()]
        done |= {key: replace(done[key], segments=None) for key in odd}
        write_summary(self.folder, done, failed, entries)


def transcribe_into(
    folder: OutputFolder,
    decoder: UtteranceDecoder,
    recordings: Sequence[Recording],
    title: str = "transcribing",
    quiet: bool = False,
    draft_texts: Mapping[Path, DraftText] = {},
) -> list[Transcript]:
    """Transcribe recordings, write their files, and print their texts unless ``quiet``.

    Recordings in the folder's journal are not decoded again. ``draft_texts``: by path.
    """
    journal, (job, by_key) = folder.journal, _make_job(recordings)
    job = replace(job, draft_texts=_draft_texts(draft_texts, by_key))
    job = _longest_first(job, decoder)
    if folder.overwrite:
        journal.discard(job.keys)
    resumed = resume(job, journal)
    before_s = sum(decoded.statistics.audio_seconds for decoded in resumed)
    remaining = [path for key, path in job.entries.items() if key not in journal.decoded]
    total_s = before_s + sum(decoder.reader.duration_s(path) or 0.0 for path in remaining)
    transcripts: dict[Recording, Transcript] = {}
    with Progress(total_s / 60, before_s / 60, title, "minutes") as progress:
        decoder = replace(decoder, on_decoded=lambda seconds: progress.update(seconds / 60))
        for outcome in chain(resumed, decode_remaining(decoder, job, journal)):
            for recording in by_key[outcome.key]:
                transcript = Transcript.of(recording, outcome)
                if transcript.error is None:
                    transcript = transcript.written(partial(folder.write, transcript))
                transcripts[recording] = transcript
                if transcript.error is not None:
                    folder.remove(transcript)
                elif not quiet:
                    progress.print(f"{recording.id} {transcript.line}")
    return [transcripts[recording] for recording in recordings]


def _make_job(recordings: Iterable[Recording]) -> tuple[JobInput, dict[str, list[Recording]]]:
    """Return a job with each file once, and the recordings by absolute path, which is the id."""
    by_key: dict[str, list[Recording]] = {}
    for recording in recordings:
        by_key.setdefault(os.path.realpath(recording.path), []).append(recording)
    entries = {key: str(same[0].path) for key, same in by_key.items()}
    return JobInput([*entries], entries, {}), by_key


def _longest_first(job: JobInput, decoder: UtteranceDecoder) -> JobInput:
    """Sort the files of batches on a GPU by duration.

    The texts of a batch then end after a similar number of decoder calls, and few rows are unused.
    """
    if decoder.speech2text.model.device.type != "cuda" or decoder.batch_size == 1:
        return job
    seconds = {key: decoder.reader.duration_s(path) or 0.0 for key, path in job.entries.items()}
    return replace(job, keys=sorted(job.keys, key=lambda key: -seconds[key]))


def _draft_texts(
    given: Mapping[str | os.PathLike, DraftText], by_key: Mapping[str, Sequence[Recording]]
) -> dict[str, DraftText]:
    """Return draft texts by id; raise InputError for a path or name of no recording."""
    keys = {}
    for key, recordings in by_key.items():
        for one in recordings:
            keys |= dict.fromkeys((str(one.path), one.name, one.id), key)
    unknown = [str(name) for name in given if os.fspath(name) not in keys]
    if unknown:
        raise InputError(
            f"draft_texts: {list_some(unknown)}; allowed: paths of the audio files, as given, or "
            "their names without suffix"
        )
    return {keys[os.fspath(name)]: text for name, text in given.items()}


def choose_device(device: str | None) -> str:
    """Return the given device, or else ``cuda`` if there is a GPU; raise InputError without one."""
    has_gpu = torch.cuda.is_available()
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device or "cpu"):
        raise InputError(f"device: {device}; allowed: cpu, cuda, cuda:1 and so on")
    if (device or "").startswith("cuda") and not has_gpu:
        raise InputError(f"device: {device}; allowed on this machine: cpu, as torch finds no GPU")
    return device or ("cuda" if has_gpu else "cpu")
