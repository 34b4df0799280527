"""LibriSpeech's data preparation, called from tests."""

import hashlib
from dataclasses import replace
from pathlib import Path

import librispeech_files
import prepare_librispeech
from librispeech_miniature import archive

RECIPE = Path(__file__).resolve().parents[2] / "egs" / "librispeech" / "asr1"


def run(folder: Path, *options) -> int:
    """Prepare into `folder/data`; returns the exit status."""
    try:
        prepare_librispeech.main(["--output_dir", str(folder / "data"), *map(str, options)])
    except SystemExit as exit_:
        return exit_.code
    return 0


def errors(capsys) -> list[str]:
    """Lines on stderr that are errors."""
    return [line for line in capsys.readouterr().err.splitlines() if "error: " in line]


def publish(corpus: Path, monkeypatch, *names: str) -> dict[str, bytes]:
    """Pack subsets as openslr does, and let the preparation know these archives' checksums.

    Returns:
        Path at openslr to content.
    """
    packed, known = {}, {}
    for name in names:
        subset = librispeech_files.SUBSETS[name]
        path = corpus.parent / f"{name}.tar.gz"
        members = (f"LibriSpeech/{name}", "LibriSpeech/SPEAKERS.TXT")
        content = archive(path, corpus.parent, *members).read_bytes()
        packed[f"/{subset.resource}/{name}.tar.gz"] = content
        known[name] = replace(subset, checksum=f"md5:{hashlib.md5(content).hexdigest()}")
    monkeypatch.setattr(prepare_librispeech, "SUBSETS", librispeech_files.SUBSETS | known)
    return packed
