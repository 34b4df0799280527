"""Audio files that a user names: files, folders, patterns; and what each one's results are called.

Nothing is read here.
"""

import glob
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.errors import InputError

# Of files in folders.
SUFFIXES = (
    ".wav", ".wave", ".w64", ".rf64", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff",
    ".aifc", ".au", ".snd", ".sph", ".caf", ".m4a", ".m4b", ".mp4", ".m4v", ".mov", ".3gp", ".aac",
    ".webm", ".mka", ".mkv", ".wma", ".wmv", ".asf", ".avi", ".flv", ".amr", ".ape", ".wv",
)  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """An audio file.

    Attributes:
        path: Where it is.
        name: Of its results, without a suffix; below a folder that was given it has that folder's
            subfolders, such as ``monday/talk1``.
    """

    path: Path
    name: str

    @property
    def id(self) -> str:
        """Of a Kaldi table: the name without white space or slashes."""
        return "_".join(self.name.replace("/", "_").split())


def find_recordings(audio: Iterable[str | Path]) -> list[Recording]:
    """Find what is named, each file once.

    Args:
        audio: Files, folders (with all folders below), and patterns such as ``talks/*.wav``.

    Returns:
        In the order given, folders and patterns sorted. A path that is not there is among them:
        to read it says so.

    Raises:
        InputError: Nothing is named, or two files' results would have the same name.
    """
    found: dict[Path, Path] = {}  # path to the folder that names are relative to
    for given in map(str, audio):
        for path in [given] if Path(given).exists() else sorted(glob.glob(given)) or [given]:
            for file, folder in _files(Path(path)):
                found.setdefault(file, folder)
    if not found:
        raise InputError(
            f"{' '.join(map(str, audio)) or 'audio'}: no audio files there; give files, folders or "
            f"patterns; in folders their names end in {' '.join(SUFFIXES)}"
        )
    return _named(found)


def _files(path: Path) -> list[tuple[Path, Path]]:
    """Files of a folder, or the path itself, each with the folder that names are relative to."""
    if not path.is_dir():
        return [(path, path.parent)]
    hidden = [*path.rglob(".*")]
    return [
        (file, path)
        for file in sorted(path.rglob("*"))
        if file.suffix.lower() in SUFFIXES
        and file.is_file()
        and not any(part == file or part in file.parents for part in hidden)
    ]


def _named(found: dict[Path, Path]) -> list[Recording]:
    """Names are paths without suffix; with it where two would be the same."""
    plain = {path: path.relative_to(folder).with_suffix("").as_posix()
             for path, folder in found.items()}  # fmt: skip
    counts = Counter(Recording(path, name).id for path, name in plain.items())
    recordings = [
        Recording(path, name if counts[Recording(path, name).id] == 1 else name + path.suffix)
        for path, name in plain.items()
    ]
    seen: dict[str, Recording] = {}
    for recording in recordings:
        other = seen.setdefault(recording.id, recording)
        if other is not recording:
            raise InputError(
                f"{other.path} and {recording.path}: both results would be called {recording.id}; "
                "rename one, give the folder that holds both, or transcribe one after the other "
                "into other folders"
            )
    return recordings
