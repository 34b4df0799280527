"""Write many utterances as audio files or arks, in several processes."""

import functools
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

import kaldiio
import numpy as np
import soundfile
from tqdm import tqdm

from espnet_medusa.audio.reader import check_audio, probe_audio, read_source, resample
from espnet_medusa.audio.source import AudioError, AudioSource, is_pipe, open_source
from espnet_medusa.kaldi.table import split_scp
from espnet_medusa.kaldi.utterances import Utterance

AUDIO_FORMATS = ("flac.ark", "wav.ark", "flac", "wav")
SUBTYPE = "PCM_16"
# How often the progress bar looks at the workers.
POLL_S = 0.2


@dataclass(frozen=True)
class AudioOptions:
    """How audio is read and written.

    Attributes:
        fs: Sample rate to write, in Hz; None keeps each file's own.
        audio_format: One of `AUDIO_FORMATS`; always 16 bit, one channel.
        nj: Processes.
        allow_pipes: Whether commands in wav.scp may run.
        max_duration_s: Longer audio is refused; None accepts any length.
        min_duration_s: Shorter audio is refused; 10 ms is one frame shift.
    """

    fs: int | None = 16000
    audio_format: str = "flac.ark"
    nj: int = 1
    allow_pipes: bool = False
    max_duration_s: float | None = None
    min_duration_s: float = 0.01

    def __post_init__(self):
        if self.audio_format not in AUDIO_FORMATS:
            allowed = ", ".join(AUDIO_FORMATS)
            raise ValueError(f"audio_format {self.audio_format} is unknown; allowed: {allowed}")
        if self.nj < 1:
            raise ValueError(f"nj must be at least 1, not {self.nj}")
        if self.fs is not None and self.fs < 1000:
            raise ValueError(f"fs must be a rate in Hz such as 16k, not {self.fs}")
        if self.min_duration_s < 0 or (
            self.max_duration_s is not None and self.max_duration_s <= self.min_duration_s
        ):
            raise ValueError(
                f"max_duration must be above min_duration, not {self.max_duration_s} and"
                f" {self.min_duration_s} s"
            )


@dataclass
class WrittenAudio:
    """What became of the utterances; each id is in one of the two.

    Attributes:
        entries: Id to value of the new wav.scp.
        n_samples: Id to length.
        bad: Id to (message, remedy).
    """

    entries: dict[str, str] = field(default_factory=dict)
    n_samples: dict[str, int] = field(default_factory=dict)
    bad: dict[str, tuple[str, str]] = field(default_factory=dict)


def write_utterances(
    utterances: Sequence[Utterance],
    staging_dir: Path,
    final_dir: str | Path,
    options: AudioOptions,
    title: str,
) -> WrittenAudio:
    """Read, check, resample and write utterances.

    Args:
        utterances: What to read.
        staging_dir: Where to write, under `data/format.<job>`.
        final_dir: Where `staging_dir` will be; the entries point there.
        options: How.
        title: Name of the progress bar on stderr.
    """
    parts = [
        _Part(job, part, staging_dir, Path(final_dir), options)
        for job, part in enumerate(split_scp(utterances, options.nj), 1)
    ]
    result = WrittenAudio()
    for part in _run(parts, len(utterances), title):
        result.entries.update(part.entries)
        result.n_samples.update(part.n_samples)
        result.bad.update(part.bad)
    return result


@dataclass(frozen=True)
class _Part:
    """One process's share."""

    job: int
    utterances: Sequence[Utterance]
    staging_dir: Path
    final_dir: Path
    options: AudioOptions


def _run(parts: Sequence[_Part], n_utterances: int, title: str) -> list[WrittenAudio]:
    with tqdm(total=n_utterances, desc=title, unit="utt", mininterval=1.0) as bar:
        if len(parts) == 1:
            return [_write_part(parts[0], bar.update)]
        # Not fork: the caller may hold threads. A killed worker raises BrokenProcessPool.
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
                raise OSError("a worker was killed, out of memory? Give a smaller --nj") from error


# A pool hands shared memory to its workers only when they start, so each keeps it here.
_worker_state: dict = {}


def _start_worker(counter) -> None:
    _worker_state["counter"] = counter
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A pool's workers outlive a parent that is killed; end them then."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _write_part_in_worker(part: _Part) -> WrittenAudio:
    counter = _worker_state["counter"]

    def count(n: int) -> None:
        with counter.get_lock():
            counter.value += n

    return _write_part(part, count)


def _write_part(part: _Part, count: Callable[[int], object]) -> WrittenAudio:
    """Write one share; a bad utterance does not stop the others."""
    result = WrittenAudio()
    folder = Path("data") / f"format.{part.job}"
    (part.staging_dir / folder).mkdir(parents=True)
    # Segments of one recording follow each other: run its command, read its ark, once.
    open_cached = functools.lru_cache(maxsize=1)(open_source)
    writer = _ArkWriter if part.options.audio_format.endswith(".ark") else _FileWriter
    with writer(part, folder) as write:
        for utterance in part.utterances:
            try:
                source = open_cached(utterance.entry, part.options.allow_pipes)
                samples, rate_hz = _prepare(source, utterance, part.options)
                result.entries[utterance.id] = write(utterance, samples, rate_hz)
                result.n_samples[utterance.id] = len(samples)
            except AudioError as error:
                result.bad[utterance.id] = (error.message, error.remedy)
            count(1)
    return result


def _prepare(
    source: AudioSource, utterance: Utterance, options: AudioOptions
) -> tuple[np.ndarray, int]:
    """Read one utterance and change speed and rate; returns float32 (N,) and the rate in Hz."""
    max_duration_s = options.max_duration_s
    samples, rate_hz = read_source(
        source, start_s=utterance.start_s, end_s=utterance.end_s, max_duration_s=max_duration_s
    )
    try:
        check_audio(samples, rate_hz, min_samples=round(options.min_duration_s * rate_hz))
    except AudioError as error:
        raise AudioError(f"{source.name} {error.message}", error.remedy) from error
    to_hz = options.fs or rate_hz
    return resample(samples, rate_hz * utterance.speed, to_hz), to_hz


class _ArkWriter:
    """Appends audio to one kaldiio ark."""

    def __init__(self, part: _Part, folder: Path):
        self.path = part.staging_dir / folder / "data_wav.ark"
        self.final_path = part.final_dir / folder / "data_wav.ark"
        self.format = part.options.audio_format.removesuffix(".ark")

    def __enter__(self):
        self.stream = open(self.path, "wb")
        return self._write

    def __exit__(self, *_):
        self.stream.close()

    def _write(self, utterance: Utterance, samples: np.ndarray, rate_hz: int) -> str:
        offset = self.stream.tell() + len(f"{utterance.id} ".encode())
        kaldiio.save_ark(
            self.stream,
            {utterance.id: (samples, rate_hz)},
            write_function="soundfile",
            write_kwargs={"format": self.format, "subtype": SUBTYPE},
        )
        return f"{self.final_path}:{offset}"


class _FileWriter:
    """Writes a file for each utterance, unless the source is such a file already."""

    def __init__(self, part: _Part, folder: Path):
        self.part = part
        self.folder = folder

    def __enter__(self):
        return self._write

    def __exit__(self, *_):
        pass

    def _write(self, utterance: Utterance, samples: np.ndarray, rate_hz: int) -> str:
        audio_format = self.part.options.audio_format
        if utterance.is_whole_file and not is_pipe(utterance.entry):
            info = probe_audio(utterance.entry)
            found = (info.format_name, info.subtype, info.n_channels, info.rate_hz)
            wanted = (audio_format.upper(), SUBTYPE, 1, rate_hz)
            if found == wanted and utterance.entry.endswith(f".{audio_format}"):
                return utterance.entry
        # The id may hold a slash; a file name must not.
        name = f"{utterance.id.replace('/', '%2F')}.{audio_format}"
        target = self.part.staging_dir / self.folder / name
        soundfile.write(target, samples, rate_hz, subtype=SUBTYPE, format=audio_format.upper())
        return str(self.part.final_dir / self.folder / name)
