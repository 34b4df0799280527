"""LibriSpeech and LibriSpeech-PC in miniature, in the corpora's formats; their data preparation."""

import hashlib
import json
import random
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import librispeech_files
import numpy as np
import prepare_librispeech
import soundfile
from refusals import exit_status

SUBSETS = (
    "train-clean-100", "train-clean-360", "train-other-500",
    "dev-clean", "dev-other", "test-clean", "test-other",
)  # fmt: skip
# Subsets of mini_librispeech, and the subsets they are part of.
PART_OF = {"train-clean-5": "train-clean-100", "dev-clean-2": "dev-clean"}
RATE_HZ = 16000
WORDS = ("the", "old", "captain", "walked", "slowly", "towards", "evening", "light", "on", "water")
SPEAKERS_HEADER = """\
; Some pipe(|) separated metadata about all LibriVox readers, whose work was used
; in the corpus.
;
;ID  |SEX| SUBSET           |MINUTES| NAME
"""


def make_librispeech(
    folder: Path,
    subsets: Sequence[str] = SUBSETS,
    n_readers: int = 2,
    n_utterances: int = 3,
    duration_s: tuple[float, float] = (1.0, 2.0),
) -> Path:
    """Write and return `folder/LibriSpeech`: per subset `n_readers` readers with a chapter each.

    No reader is in two of `SUBSETS`. Readers' names contain pipes, as some do in the corpus.
    Subsets of mini_librispeech have the readers and utterances of the subset they are part of.
    """
    corpus = folder / "LibriSpeech"
    corpus.mkdir(parents=True)
    speakers = []
    for subset in subsets:
        first = 1 + 20 * SUBSETS.index(PART_OF.get(subset, subset))
        for reader in range(first, first + n_readers):
            _write_chapter(corpus / subset, reader, 1000 + reader, n_utterances, duration_s)
            sex = "FM"[reader % 2]
            speakers.append(f"{reader:<4} | {sex} | {subset:<16} | 25.03 | |CBW|Reader {reader}\n")
    (corpus / "SPEAKERS.TXT").write_text(SPEAKERS_HEADER + "".join(speakers), encoding="utf-8")
    (corpus / "README.TXT").write_text("miniature\n", encoding="utf-8")
    return corpus


def _write_chapter(
    folder: Path, reader: int, chapter: int, n_utterances: int, duration_s: tuple[float, float]
) -> None:
    chapter_dir = folder / str(reader) / str(chapter)
    chapter_dir.mkdir(parents=True)
    lines = []
    for number in range(n_utterances):
        key = f"{reader}-{chapter}-{number:04d}"
        generator = random.Random(key)
        lines.append(f"{key} {' '.join(generator.choices(WORDS, k=4)).upper()}\n")
        samples = murmur(generator.uniform(*duration_s), seed=reader * 100 + number)
        soundfile.write(chapter_dir / f"{key}.flac", samples, RATE_HZ, subtype="PCM_16")
    (chapter_dir / f"{reader}-{chapter}.trans.txt").write_text("".join(lines), encoding="utf-8")


def murmur(duration_s: float, seed: int) -> np.ndarray:
    """Return noise whose level changes about four times per second, as speech; float32 (N,)."""
    noise = np.random.default_rng(seed).normal(0, 0.05, round(duration_s * RATE_HZ))
    swell = 0.5 - 0.5 * np.cos(2 * np.pi * 4 * np.arange(len(noise)) / RATE_HZ)
    return (noise * swell).astype(np.float32)


def make_librispeech_pc(folder: Path, corpus: Path) -> Path:
    """Write `<subset>.json` for subsets, without each chapter's last utterance; return `folder`.

    Utterances of mini_librispeech are in the manifest of the subset they are part of.
    """
    folder.mkdir(parents=True)
    for subset in (path for path in sorted(corpus.iterdir()) if path.is_dir()):
        name = PART_OF.get(subset.name, subset.name)
        lines = []
        for table in sorted(subset.rglob("*.trans.txt")):
            for line in table.read_text(encoding="utf-8").splitlines()[:-1]:
                key, plain = line.split(" ", 1)
                audio = table.parent / f"{key}.flac"
                entry = {
                    "audio_filepath": str(name / audio.relative_to(subset)),
                    "duration": soundfile.info(audio).duration,
                    "text": restore(plain),
                    "text_raw": f"  {restore(plain)}",
                }
                lines.append(json.dumps(entry) + "\n")
        (folder / f"{name}.json").write_text("".join(lines), encoding="utf-8")
    return folder


def restore(plain: str) -> str:
    """Return the punctuated transcript that `make_librispeech_pc` writes for a plain one."""
    first, rest = plain.lower().split(" ", 1)
    return f"{first.capitalize()}, {rest}."


def archive(path: Path, folder: Path, *members: str) -> Path:
    """Pack members of a folder into a tar.gz, with their names in that folder."""
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.add(folder / member, arcname=member)
    return path


def run(folder: Path, *options) -> int:
    """Prepare into `folder/data`; return the exit status."""
    return exit_status(prepare_librispeech.main, "--output_dir", folder / "data", *options)


def errors(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "error: " in line]


def publish(corpus: Path, monkeypatch, *names: str) -> dict[str, bytes]:
    """Pack subsets as openslr does, with known checksums; return path at openslr to content."""
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
