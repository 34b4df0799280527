"""Audio sources of wav.scp values: a file, an entry of an ark, or the output of a command."""

import io
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from espnet_medusa.data.errors import InputError

COPY_AGAIN = "copy it again or remove the utterance"


class AudioError(InputError):
    """Audio that cannot be used; ``message`` has the source, if it is known, and the reason."""

    def __init__(self, message: str, remedy: str):
        super().__init__(message, remedy)
        self.message = " ".join(message.split())
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


class DamagedError(AudioError):
    """Audio that is corrupt or truncated; ``length_s``: as its header declares, if known."""

    def __init__(self, message: str, length_s: float | None = None):
        super().__init__(message, COPY_AGAIN)
        self.length_s = length_s


@dataclass(frozen=True)
class AudioInfo:
    rate_hz: int  # sample rate
    n_channels: int
    n_samples: int | None  # of one channel; None if the header does not contain it
    format_name: str  # libsndfile's name of the container, such as "FLAC", or FFmpeg's
    subtype: str  # libsndfile's name of the encoding, such as "PCM_16", or FFmpeg's of the codec

    @property
    def duration_s(self) -> float | None:
        return None if self.n_samples is None else self.n_samples / self.rate_hz


@dataclass(frozen=True)
class AudioSource:
    name: str  # for messages
    target: str | bytes  # a path, or the bytes in memory
    size_bytes: int  # length of the encoded audio

    def open(self) -> BinaryIO:
        """Open the encoded audio as a seekable binary stream."""
        target = self.sndfile_target()
        return open(target, "rb") if isinstance(target, str) else target

    def sndfile_target(self) -> str | BinaryIO:
        """Return the argument for `soundfile.SoundFile`."""
        return io.BytesIO(self.target) if isinstance(self.target, bytes) else self.target


def is_pipe(entry: str) -> bool:
    """Return whether a wav.scp value is a command."""
    return entry.endswith("|") or entry.startswith("|")


def ark_address(entry: str) -> tuple[str, int] | None:
    """Split `x.ark:offset`; None for anything else, such as an existing file of that name."""
    match = re.fullmatch(r"(.+):([0-9]{1,18})", entry)
    if match is None or os.path.exists(entry):
        return None
    return match.group(1), int(match.group(2))


def source_columns(entry: str) -> list[str]:
    """Return the values of the channels, as ESPnet's wav.scp may have a column for each.

    A value is one column unless it is of several words, each of which is an existing file.
    """
    words = entry.split()
    if len(words) < 2 or is_pipe(entry) or os.path.exists(entry):
        return [entry]
    files = [address[0] if (address := ark_address(word)) else word for word in words]
    return words if all(map(os.path.isfile, files)) else [entry]


def source_paths(entry: str) -> list[Path]:
    """List the files that a wav.scp value or a path refers to; none for a command."""
    if is_pipe(entry) and not os.path.exists(entry):
        return []
    addresses = [(column, ark_address(column)) for column in source_columns(entry)]
    return [Path(address[0] if address else column) for column, address in addresses]


def open_source(entry: str | AudioSource, allow_pipes: bool = False) -> AudioSource:
    """Find the encoded audio of a wav.scp value: a path, `x.ark:offset`, or `command |`.

    An opened source is returned as it is. Raise AudioError if the audio is missing, unreadable,
    empty, or a command that is not allowed or fails.
    """
    if isinstance(entry, AudioSource):
        return entry
    entry = entry.strip()
    if not entry:
        raise AudioError("the wav.scp value is empty", "add a path")
    if "\0" in entry:
        raise AudioError(f"{entry!r}: has a NUL character", "correct the path")
    if is_pipe(entry):
        return _run_pipe(entry, allow_pipes)
    address = ark_address(entry)
    if address is not None:
        with _naming(entry):
            return _read_ark(entry, *address)
    if entry.startswith("~"):
        raise AudioError(f"{entry}: '~' is not expanded in wav.scp", "write the whole path")
    return open_file(entry)


def open_file(path: str) -> AudioSource:
    """Find the encoded audio of a file with any name; errors as for `open_source`."""
    if os.path.isdir(path):
        raise AudioError(f"{path}: is a folder", "give an audio file")
    with _naming(path):
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise AudioError(f"{path}: is a device or a pipe", "give an audio file")
        with open(path, "rb"):  # Raises for a file without read permission.
            pass
    if status.st_size == 0:
        raise AudioError(f"{path}: is an empty file", COPY_AGAIN)
    return AudioSource(path, path, status.st_size)


@contextmanager
def _naming(entry: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = f"{entry}: cannot be read ({error.strerror})"
        raise AudioError(reason, "correct the path") from error


def _read_ark(entry: str, path: str, offset: int) -> AudioSource:
    """Read one audio file from an ark that kaldiio or Kaldi wrote."""
    with open(path, "rb") as stream:
        stream.seek(offset)
        flag = stream.read(5)
        if flag == b"AUDIO":  # kaldiio: number of length bytes, length, audio
            n_length_bytes = int.from_bytes(stream.read(1), "little")
            length = int.from_bytes(stream.read(n_length_bytes), "little")
            data = _take(stream, length)
            if len(data) < length:
                missing = f"{length - len(data)} of {length} bytes are missing"
                raise AudioError(f"{entry}: the ark is truncated ({missing})", "write it again")
        elif flag[:4] == b"RIFF":  # Kaldi's wav arks: the wav header contains the length
            length = int.from_bytes(flag[4:] + stream.read(3), "little")
            stream.seek(offset)
            data = _take(stream, length + 8)
        elif flag[:4] == b"fLaC":
            stream.seek(offset)
            data = stream.read()
        else:
            raise AudioError(
                f"{entry}: contains no wav or flac audio at that offset (it starts with {flag!r})",
                "correct the offset, or give audio instead of features",
            )
    return AudioSource(entry, data, len(data))


def _take(stream: BinaryIO, length: int) -> bytes:
    """Read `length` bytes or to the end of the file; Python would first allocate all of them."""
    left = os.fstat(stream.fileno()).st_size - stream.tell()
    return stream.read(max(0, min(length, left)))


def _run_pipe(entry: str, allow_pipes: bool) -> AudioSource:
    if not allow_pipes:
        raise AudioError(
            f"{entry}: is a command",
            "give --allow_pipes true if you trust this wav.scp, or write audio files",
        )
    if not entry.endswith("|"):
        raise AudioError(f"{entry}: writes into a command", "wav.scp needs 'command |'")
    bash = shutil.which("bash")
    command = entry[:-1].strip()
    # Without pipefail, bash ignores a decoder that fails before a filter.
    shell = [bash, "-c", f"set -o pipefail; {command}"] if bash else ["sh", "-c", command]
    process = subprocess.run(shell, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if process.returncode:
        lines = process.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise AudioError(
            f"{entry}: the command failed with status {process.returncode} ({lines[-1]})",
            "run it by hand and correct it",
        )
    if not process.stdout:
        raise AudioError(f"{entry}: the command wrote nothing", "run it by hand and correct it")
    return AudioSource(entry, process.stdout, len(process.stdout))
