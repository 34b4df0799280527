"""Read a subset of LibriSpeech, its SPEAKERS.TXT, and the manifests of LibriSpeech-PC."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from tqdm import tqdm

from espnet_medusa.data.audio.reader import AudioError, measure_audio
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import DataProblem, scan_table

COPY_AGAIN = "copy it from the corpus again"


@dataclass(frozen=True)
class Utterance:
    """An utterance with audio and transcript."""

    id: str  # `<reader>-<chapter>-<number>`
    audio: Path  # FLAC file
    text: str  # transcript as distributed: upper case, no punctuation
    duration_s: float = 0.0  # of the audio

    @property
    def reader(self) -> str:
        """Id of the reader."""
        return self.id.split("-")[0]

    @property
    def speaker(self) -> str:
        """Reader and chapter, the speaker of Kaldi's recipe."""
        return self.id.rpartition("-")[0]


@dataclass
class SubsetContent:
    """The content of a subset."""

    # Usable utterances by id, in order.
    utterances: dict[str, Utterance] = field(default_factory=dict)
    # One for each unusable utterance or chapter.
    problems: list[DataProblem] = field(default_factory=list)


def read_subset(folder: Path, nj: int = 1, title: str = "read") -> SubsetContent:
    """Read a subset's transcripts, and the header and the end of each audio file.

    Args:
        folder: Folder of `<reader>/<chapter>/<reader>-<chapter>-<number>.flac`.
        nj: Number of audio files that are read in parallel.
        title: Title of the progress bar.

    Raises:
        InputError: The folder has no chapters.
    """
    content, listed = SubsetContent(), []
    for chapter in sorted(path for path in folder.glob("*/*") if path.is_dir()):
        utterances, problems = read_chapter(chapter)
        listed += utterances
        content.problems += problems
    if not listed and not content.problems:
        raise InputError(f"{folder}: has no <reader>/<chapter> folders; unpack the corpus again")
    interval_s = 0.2 if sys.stderr.isatty() else 30  # between updates of the progress bar
    with ThreadPoolExecutor(nj) as threads:
        measured = threads.map(_duration_or_problem, listed)
        durations = tqdm(measured, title, len(listed), unit=" files", mininterval=interval_s)
        for utterance, duration_s in zip(listed, durations, strict=True):
            if isinstance(duration_s, DataProblem):
                content.problems.append(duration_s)
            else:
                content.utterances[utterance.id] = replace(utterance, duration_s=duration_s)
    return content


def read_chapter(folder: Path) -> tuple[list[Utterance], list[DataProblem]]:
    """Match the transcripts of a chapter with its FLAC files; durations are set later."""
    name = f"{folder.parent.name}-{folder.name}"
    table = folder / f"{name}.trans.txt"
    audio = {path.stem: path for path in folder.glob("*.flac")}
    scan = scan_table(table)
    of_file = [problem for problem in scan.problems if not problem.id]
    if of_file:
        message = f"{of_file[0].message}, so that {len(audio)} FLAC files have no transcript"
        return [], [DataProblem(str(table), name, message, COPY_AGAIN)]
    problems = list(scan.problems)
    known_bad = {problem.id for problem in problems}
    for key in sorted(set(scan.entries) - set(audio) - known_bad):
        message = f"is missing (its transcript is in {table.name})"
        problems.append(DataProblem(str(folder / f"{key}.flac"), key, message, COPY_AGAIN))
    for key in sorted(set(audio) - set(scan.entries) - known_bad):
        message = f"is missing ({key}.flac is there)"
        problems.append(DataProblem(str(table), key, message, COPY_AGAIN))
    good = sorted(set(scan.entries) & set(audio) - known_bad)
    return [Utterance(key, audio[key], scan.entries[key]) for key in good], problems


def _duration_or_problem(utterance: Utterance) -> float | DataProblem:
    try:
        return measure_audio(utterance.audio)
    except AudioError as error:
        message = error.message.removeprefix(f"{utterance.audio}: ")
        return DataProblem(str(utterance.audio), utterance.id, message, error.remedy)


def read_genders(path: Path) -> tuple[dict[str, str], list[DataProblem]]:
    """Read SPEAKERS.TXT: `reader | F or M | subset | minutes | name`, `;` starts a comment.

    Returns:
        Reader to `f` or `m`, as Kaldi writes them, and a problem for each line of another form.
    """
    genders, problems = {}, []
    # Names may be in any encoding; they are not used.
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith(";"):
            continue
        fields = [value.strip() for value in line.split("|")]
        if len(fields) < 4 or fields[1].lower() not in ("f", "m"):
            message = "is not 'reader | F or M | subset | minutes | name'"
            problems.append(DataProblem(str(path), f"line {number}", message, COPY_AGAIN))
        else:
            genders[fields[0]] = fields[1].lower()
    return genders, problems


def read_manifest(path: Path) -> tuple[dict[str, str], list[DataProblem]]:
    """Read a manifest of LibriSpeech-PC: transcripts with the punctuation and case of the books.

    Each line is a JSON object of one utterance; `audio_filepath` ends in `<id>.flac`. `text` is
    the version for recognition, `text_raw` is not used. About 9 % of the corpus are missing.

    Returns:
        Utterance id to restored transcript, and a problem for each unusable line.
    """
    texts: dict[str, str] = {}
    problems = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            key, text = Path(entry["audio_filepath"]).stem, " ".join(entry["text"].split())
        except (ValueError, KeyError, TypeError, AttributeError):
            message = "is no JSON object with audio_filepath and text"
        else:
            message = f"names {key} again" if key in texts else ""
            if not text:
                message = f"has no text for {key}"
        if message:
            remedy = "unpack the manifests again"
            problems.append(DataProblem(str(path), f"line {number}", message, remedy))
        else:
            texts[key] = text
    return texts, problems
