"""Write many utterances as audio files or arks, in several processes."""

import functools
import logging
import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import kaldiio
import numpy as np
import soundfile
from tqdm import tqdm

from espnet_medusa.data.audio.reader import check_audio, probe_audio, read_audio, resample
from espnet_medusa.data.audio.reading import AudioReading
from espnet_medusa.data.audio.source import (
    AudioError,
    AudioSource,
    is_pipe,
    open_source,
    source_columns,
)
from espnet_medusa.data.errors import list_some
from espnet_medusa.data.kaldi.table import split_scp
from espnet_medusa.data.kaldi.utterances import Utterance
from espnet_medusa.data.options import option

logger = logging.getLogger(__name__)

AUDIO_FORMATS = ("flac.ark", "wav.ark", "flac", "wav")
SUBTYPE = "PCM_16"
POLL_S = 0.2  # between updates of the progress bar
# (utterance, samples, rate in Hz) -> value for wav.scp
Write = Callable[[Utterance, np.ndarray, int], str]


@dataclass(frozen=True)
class AudioOptions:
    fs: int | None = option(16000, "rate in Hz (16000, 16k); none: each file's own")
    audio_format: str = option("flac.ark", "format to write: 16 bit, one channel")
    nj: int = option(1, "processes")
    allow_pipes: bool = option(False, "whether commands in wav.scp may run")
    max_duration: float | None = option(None, "longest allowed audio in s, or none")
    min_duration: float = option(0.01, "shortest allowed audio in s; 10 ms: a frame shift")
    player_times: bool = option(True, "as in espnet-medusa-transcribe: times of media files")

    def __post_init__(self):
        if self.nj < 1:
            raise ValueError(f"nj must be at least 1, not {self.nj}")
        if self.fs is not None and self.fs < 1000:
            raise ValueError(f"fs must be a rate in Hz such as 16k, not {self.fs}")
        least_s, most_s = self.min_duration, self.max_duration
        if not 0 <= least_s < math.inf or not (most_s is None or least_s < most_s < math.inf):
            raise ValueError(
                f"allowed: 0 <= min_duration < max_duration, not {least_s} and {most_s} s"
            )


@dataclass
class WrittenAudio:
    """The result for each utterance; each id is in `entries` or in `bad`."""

    entries: dict[str, str] = field(default_factory=dict)  # id to value of the new wav.scp
    lengths: dict[str, str] = field(default_factory=dict)  # id to value of utt2num_samples
    bad: dict[str, tuple[str, str]] = field(default_factory=dict)  # id to (message, remedy)
    clipped: dict[str, float] = field(default_factory=dict)  # id to the peak, which is above 1


@dataclass(frozen=True)
class _Part:
    folder: Path  # in staging_dir
    utterances: Sequence[Utterance]
    staging_dir: Path
    final_dir: Path
    options: AudioOptions


def write_utterances(
    utterances: Sequence[Utterance],
    staging_dir: Path,
    final_dir: str | Path,
    options: AudioOptions,
    title: str,
) -> WrittenAudio:
    """Read, check, resample and write utterances in `data/format.<job>` of `staging_dir`.

    The entries of wav.scp refer to `final_dir`, to which `staging_dir` is renamed later. Samples
    beyond [-1, 1] are clipped, as sox and ESPnet do, with a warning that names the utterances.
    """
    result = WrittenAudio()
    if not utterances:
        return result
    parts = [
        _Part(Path(f"data/format.{job}"), part, staging_dir, Path(final_dir), options)
        for job, part in enumerate(split_scp(utterances, options.nj), 1)
    ]
    for part in _run(parts, len(utterances), title):
        for name, table in vars(part).items():
            getattr(result, name).update(table)
    if result.clipped:
        peaks = list_some(f"{key} (peak {peak:.3g})" for key, peak in result.clipped.items())
        logger.warning(f"{title}: samples beyond [-1, 1] were clipped: {peaks}; scale this audio")
    return result


def _run(parts: Sequence[_Part], n_utterances: int, title: str) -> list[WrittenAudio]:
    with tqdm(total=n_utterances, desc=title, unit="utt", mininterval=1.0) as bar:
        if len(parts) == 1:
            return [_write_part(parts[0], bar.update)]
        # Not fork: the caller may have threads. A killed worker raises BrokenProcessPool.
        context = multiprocessing.get_context("spawn")
        counter = context.Value("q", 0)
        with ProcessPoolExecutor(
            len(parts), mp_context=context, initializer=_start_worker, initargs=(counter,)
        ) as pool:
            waiting = {pool.submit(_write_part_in_worker, part) for part in parts}
            futures = list(waiting)
            while waiting:
                _, waiting = wait(waiting, timeout=POLL_S)
                bar.update(counter.value - bar.n)
            try:
                return [future.result() for future in futures]
            except BrokenProcessPool as error:
                raise OSError("a worker was killed, perhaps out of memory; reduce --nj") from error


# A pool passes shared memory to its workers only when they start.
_worker_state: dict = {}


def _start_worker(counter) -> None:
    _worker_state["counter"] = counter
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent is killed; pools do not do that."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _write_part_in_worker(part: _Part) -> WrittenAudio:
    counter = _worker_state["counter"]

    def count(n: int) -> None:
        with counter.get_lock():
            counter.value += n

    return _write_part(part, count)


def _write_part(part: _Part, count: Callable[[int], object]) -> WrittenAudio:
    """Write the utterances of a process; a bad one does not stop the others."""
    result = WrittenAudio()
    (part.staging_dir / part.folder).mkdir(parents=True)
    # For consecutive segments of a recording, run its command or read its ark only once.
    open_cached = functools.lru_cache(maxsize=1)(open_source)
    open_writer = _ark_writer if part.options.audio_format.endswith(".ark") else _file_writer
    with open_writer(part) as write:
        for utterance in part.utterances:
            try:
                source = utterance.entry
                if len(source_columns(source)) == 1:
                    source = open_cached(source, part.options.allow_pipes)
                samples, rate_hz = _prepare(source, utterance, part.options)
                result.entries[utterance.id] = write(utterance, samples, rate_hz)
                result.lengths[utterance.id] = str(len(samples))
                if (peak := float(np.abs(samples).max(initial=0.0))) > 1:
                    result.clipped[utterance.id] = peak
            except AudioError as error:
                result.bad[utterance.id] = (error.message, error.remedy)
            count(1)
    return result


def _prepare(
    source: str | AudioSource, utterance: Utterance, options: AudioOptions
) -> tuple[np.ndarray, int]:
    """Read one utterance, change speed and rate; return float32 (N,) and the rate in Hz."""
    span = {"start_s": utterance.start_s, "end_s": utterance.end_s}
    reading = AudioReading(player_times=options.player_times)
    limits = {"max_duration_s": options.max_duration, "reading": reading}
    samples, rate_hz = read_audio(source, **limits, **span)
    try:
        check_audio(samples, rate_hz, min_samples=round(options.min_duration * rate_hz))
    except AudioError as error:
        raise AudioError(f"{utterance.entry} {error.message}", error.remedy) from error
    to_hz = options.fs or rate_hz
    return resample(samples, rate_hz * utterance.speed, to_hz), to_hz


@contextmanager
def _ark_writer(part: _Part) -> Iterator[Write]:
    ark = part.folder / "data_wav.ark"
    audio_format = part.options.audio_format.removesuffix(".ark")
    with open(part.staging_dir / ark, "wb") as stream:

        def write(utterance: Utterance, samples: np.ndarray, rate_hz: int) -> str:
            offset = stream.tell() + len(f"{utterance.id} ".encode())
            entry = {utterance.id: (samples, rate_hz)}
            options = {"format": audio_format, "subtype": SUBTYPE}
            kaldiio.save_ark(stream, entry, write_function="soundfile", write_kwargs=options)
            return f"{part.final_dir / ark}:{offset}"

        yield write


@contextmanager
def _file_writer(part: _Part) -> Iterator[Write]:
    """Write a file for each utterance, unless the source is such a file already."""
    audio_format = part.options.audio_format

    def write(utterance: Utterance, samples: np.ndarray, rate_hz: int) -> str:
        if utterance.is_whole_file and not is_pipe(utterance.entry):
            info = probe_audio(utterance.entry)
            stored = (info.format_name, info.subtype, info.n_channels, info.rate_hz)
            expected = (audio_format.upper(), SUBTYPE, 1, rate_hz)
            if stored == expected and utterance.entry.endswith(f".{audio_format}"):
                return utterance.entry
        # An id may contain a slash, a file name must not.
        file = part.folder / f"{utterance.id.replace('/', '%2F')}.{audio_format}"
        soundfile.write(part.staging_dir / file, samples, rate_hz, SUBTYPE, format=audio_format)
        return str(part.final_dir / file)

    yield write
