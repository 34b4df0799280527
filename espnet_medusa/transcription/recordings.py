"""Find the audio files of a command line, name their results, and read them."""

import glob
import logging
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from espnet_medusa.data.audio.reader import check_audio, probe_audio, read_mixed, resample
from espnet_medusa.data.audio.reading import TRANSCRIBING, AudioReading
from espnet_medusa.data.audio.source import AudioError, AudioInfo, open_file
from espnet_medusa.data.errors import InputError, list_some
from espnet_medusa.inference.journal import FAILED, JOURNAL, STATISTICS
from espnet_medusa.inference.longform.segment import SEGMENTS
from espnet_medusa.inference.reader import UtteranceReader
from espnet_medusa.networks.whisper.log_mel import HOP_SAMPLES
from espnet_medusa.transcription.audio_suffixes import SUFFIXES, is_audio

logger = logging.getLogger(__name__)

TEXT = "text"
OWN_FILES = (TEXT, FAILED, JOURNAL, STATISTICS, SEGMENTS)  # of the command, in the output folder
SHOWN_FILES = 3


@dataclass(frozen=True)
class Recording:
    path: Path
    # Name of its results, without a suffix unless another file has the same name. For files in a
    # given folder it includes the subfolders, such as ``monday/talk1``.
    name: str
    number: int = 1  # above 1: other recordings would have the same id

    @property
    def id(self) -> str:
        """Id in Kaldi tables: the name without white space or slashes; ``?`` for invalid bytes."""
        name = self.name.encode(errors="replace").decode()
        name = "_".join(name.replace("/", "_").split()) or "_"
        return name if self.number == 1 else f"{name}_{self.number}"


def find_recordings(audio: Iterable[str | os.PathLike]) -> list[Recording]:
    """Find audio files, each once, in the order given; those of folders and patterns are sorted.

    ``audio`` has files, folders (recursive, no hidden ones), and patterns such as ``talks/*.wav``.
    Paths that do not exist are included; they fail when they are read. Raise InputError if there is
    no file, the results of two files would have the same name, or that of a file of the command.
    """
    found: dict[str, Recording] = {}
    for given in audio:
        if not isinstance(given, str | os.PathLike):
            raise InputError(
                f"audio: {type(given).__name__}; allowed: files, folders or patterns; for samples: "
                "Speech2Text.transcribe"
            )
        given = os.fspath(given)
        if not given:
            raise InputError("audio: an argument is empty; give files, folders or patterns")
        for path in [given] if os.path.exists(given) else sorted(glob.glob(given)) or [given]:
            for recording in _recordings(Path(path)):
                folder, name = os.path.split(recording.path)
                # One spelling of the folder; links to one file have results of their own.
                found.setdefault(os.path.join(os.path.realpath(folder), name), recording)
    if not found:
        raise InputError(
            f"{' '.join(map(str, audio)) or 'audio'}: no audio files; give files, folders or "
            f"patterns; suffixes of audio files in folders: {' '.join(SUFFIXES)}"
        )
    counts = Counter(recording.id for recording in found.values())
    by_name: dict[str, Recording] = {}
    ids: set[str] = set()
    for recording in found.values():
        if counts[recording.id] > 1:
            recording = Recording(recording.path, recording.name + recording.path.suffix)
        # Such as "a b" and "a_b". Resuming does not depend on ids.
        while recording.id in ids:
            recording = replace(recording, number=recording.number + 1)
        ids.add(recording.id)
        other = by_name.setdefault(recording.name, recording)
        if other is not recording:
            name = recording.name
            raise InputError(
                f"{other.path} and {recording.path}: both results would be called {name}; "
                "rename one, give the folder that contains both, or transcribe them into "
                "different folders"
            )
        own = f"{recording.name}.json".split("/")[0]  # formats other than json have no such files
        if own in OWN_FILES:
            raise InputError(
                f"{recording.path}: its result would replace {own} in the output folder; rename "
                "it, or give a folder further up"
            )
    return [*by_name.values()]


def _recordings(path: Path) -> list[Recording]:
    """Return a folder's audio files (also broken links), or the path itself."""
    if not os.path.isdir(path):
        return [Recording(path, path.with_suffix("").name)]
    files = [
        file
        for file in sorted(path.rglob("*"))
        if not os.path.isdir(file)
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    audio = [file for file in files if is_audio(file)]
    if len(audio) < len(files):
        others = [repr(file.name)[1:-1] for file in files if not is_audio(file)]
        logger.warning(
            f"{path}: {len(others)} of {len(files)} files are not audio by their suffix and are "
            f"skipped: {list_some(others, SHOWN_FILES)}; to transcribe one, give its own name"
        )
    return [Recording(file, file.relative_to(path).with_suffix("").as_posix()) for file in audio]


@dataclass(frozen=True)
class AudioFileReader(UtteranceReader):
    """Reads audio files: averages channels and resamples; reads each header once."""

    # Path to header, or to the reason why it cannot be read.
    headers: dict[str, AudioInfo | AudioError] = field(default_factory=dict)
    reading: AudioReading = TRANSCRIBING

    def duration_s(self, path: str) -> float | None:
        """Return the duration in the header; None: the header has none, or cannot be read."""
        header = self._header(path)
        return None if isinstance(header, AudioError) else header.duration_s

    def read_samples(self, entry: str, max_duration_s: float | None) -> np.ndarray:
        """Return the samples (N,) in [-1, 1] at the model's rate; errors as for ``read``."""
        header = self._header(entry)
        if isinstance(header, AudioError):
            raise header
        mixed = read_mixed(open_file(entry), (0.0, None, max_duration_s), self.reading)
        if header.n_channels > 1 and not mixed.cancelled:  # else a warning names these parts
            logger.warning(f"{entry}: its {header.n_channels} channels are averaged")
        samples = resample(mixed.samples, mixed.rate_hz, self.limits.sample_rate_hz)
        check_audio(samples, self.limits.sample_rate_hz, min_samples=HOP_SAMPLES)
        return samples

    def describe(self, entry: str) -> str:
        return entry if _fits_tables(entry) else repr(entry)[1:-1]

    def _header(self, path: str) -> AudioInfo | AudioError:
        if path not in self.headers:
            try:
                if not _fits_tables(path + os.path.realpath(path)):
                    reason = "the name has a line break or is not UTF-8"
                    raise AudioError(reason, "rename the file or its folder")
                self.headers[path] = probe_audio(open_file(path), reading=self.reading)
            except AudioError as error:
                self.headers[path] = error.with_traceback(None)
        return self.headers[path]


def _fits_tables(path: str) -> bool:
    """Return whether a path has no line break and is UTF-8."""
    return not {"\n", "\r"} & {*path} and path == path.encode(errors="replace").decode()
