"""Read the clips of the Free Spoken Digit Dataset: ``{digit}_{speaker}_{index}.wav``."""

import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

SAMPLE_RATE_HZ = 8000
# The longest clip of the data set is 2.3 s, so much larger files are no clips.
MAX_CLIP_BYTES = 1_000_000
_CLIP_NAME = re.compile(r"([0-9])_([a-z]+)_([0-9]+)\.wav")


@dataclass(frozen=True)
class Clip:
    """One spoken digit."""

    digit: int  # 0 to 9
    speaker: str  # lower-case name
    index: int  # number of the recording of this digit by this speaker
    samples: np.ndarray  # float32, shape (N,), at 8 kHz


def read_clips(fsdd_dir: Path, speakers: tuple[str, ...] = ()) -> list[Clip]:
    """Read clips from ``*.wav`` below a folder, or from the ``*.tar.gz`` in it.

    Archives are read in memory and not unpacked. If a clip is both a file and in an archive, the
    file is read.

    Args:
        speakers: speakers to read; all when empty.

    Returns:
        Clips in order of speaker, digit, index.

    Raises:
        ValueError: no clips, an unreadable archive or clip, or a missing speaker.
    """
    if not fsdd_dir.is_dir():
        raise ValueError(
            f"{fsdd_dir}: no such folder; --fsdd_dir must have the *.wav of the Free Spoken "
            "Digit Dataset or {speaker}.tar.gz of them"
        )
    clips: dict[tuple[str, int, int], Clip] = {}
    for source, name, content in _files(fsdd_dir):
        match = _CLIP_NAME.fullmatch(name)
        if match is None:
            continue
        digit, speaker, index = int(match[1]), match[2], int(match[3])
        key = (speaker, digit, index)
        if key in clips or (speakers and speaker not in speakers):
            continue
        clips[key] = Clip(digit, speaker, index, _decode(source, content))
    present = {speaker for speaker, _, _ in clips}
    missing = sorted(set(speakers) - present)
    if missing or not clips:
        raise ValueError(
            f"{fsdd_dir}: no clips {{digit}}_{{speaker}}_{{index}}.wav of "
            f"{' '.join(missing) or 'any speaker'}; there are clips of: "
            f"{' '.join(sorted(present)) or 'nobody'}"
        )
    return [clips[key] for key in sorted(clips)]


def _files(fsdd_dir: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield each file's place for messages, its name and its content."""
    for path in sorted(fsdd_dir.rglob("*.wav")):
        if path.is_file():
            _require_size(str(path), path.stat().st_size)
            yield str(path), path.name, path.read_bytes()
    for path in sorted(fsdd_dir.glob("*.tar.gz")):
        try:
            with tarfile.open(path, "r:gz") as archive:
                for member in archive:
                    if member.isfile() and member.name.endswith(".wav"):
                        source = f"{path}: {member.name}"
                        _require_size(source, member.size)
                        yield source, Path(member.name).name, archive.extractfile(member).read()
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise ValueError(f"{path}: not a whole gzipped tar archive ({error})") from error


def _require_size(source: str, n_bytes: int) -> None:
    if n_bytes > MAX_CLIP_BYTES:
        raise ValueError(
            f"{source}: {n_bytes} bytes; a spoken digit has {MAX_CLIP_BYTES} at most: remove it"
        )


def _decode(source: str, content: bytes) -> np.ndarray:
    try:
        samples, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    except soundfile.LibsndfileError as error:
        raise ValueError(
            f"{source}: not an audio file ({error.error_string}): fetch it again"
        ) from error
    if rate != SAMPLE_RATE_HZ or samples.ndim != 1 or not len(samples):
        raise ValueError(
            f"{source}: shape {samples.shape} at {rate} Hz; the data set's clips are mono, "
            f"{SAMPLE_RATE_HZ} Hz, not empty"
        )
    return samples
