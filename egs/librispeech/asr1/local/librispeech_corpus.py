"""Read a subset of LibriSpeech: `<reader>/<chapter>/<reader>-<chapter>-<number>.flac`."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from tqdm import tqdm

from espnet_medusa.audio.reader import AudioError, check_audio, probe_audio, read_audio
from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.table import DataProblem, scan_table

COPY_AGAIN = "copy it from the corpus again"
# A truncated FLAC file has a good header; what is missing is its end.
TAIL_S = 0.1


@dataclass(frozen=True)
class Utterance:
    """An utterance whose audio and transcript are there.

    Attributes:
        id: `<reader>-<chapter>-<number>`.
        audio: FLAC file.
        text: Transcript as distributed: upper case, no punctuation.
        duration_s: Of the audio.
    """

    id: str
    audio: Path
    text: str
    duration_s: float = 0.0

    @property
    def reader(self) -> str:
        """Id of who reads."""
        return self.id.split("-")[0]

    @property
    def speaker(self) -> str:
        """Reader and chapter, which is what Kaldi's recipe takes for a speaker."""
        return self.id.rpartition("-")[0]


@dataclass
class SubsetContent:
    """What a subset holds.

    Attributes:
        utterances: The good ones by id, in order.
        problems: One for each utterance, or chapter, that cannot be used.
    """

    utterances: dict[str, Utterance] = field(default_factory=dict)
    problems: list[DataProblem] = field(default_factory=list)


def read_subset(folder: Path, nj: int = 1, title: str = "read") -> SubsetContent:
    """Read transcripts, and of each audio file the header and the end.

    Args:
        folder: Such as `LibriSpeech/dev-clean`.
        nj: Audio files to read at a time.
        title: Of the progress bar.

    Raises:
        InputError: The folder has no chapters.
    """
    content, found = SubsetContent(), []
    for chapter in sorted(path for path in folder.glob("*/*") if path.is_dir()):
        utterances, problems = read_chapter(chapter)
        found += utterances
        content.problems += problems
    if not found and not content.problems:
        raise InputError(f"{folder}: holds no <reader>/<chapter> folders; unpack the corpus again")
    # A log file gets a line now and then, not a redrawn bar.
    interval_s = 0.2 if sys.stderr.isatty() else 30
    with ThreadPoolExecutor(nj) as threads:
        measured = threads.map(_duration_or_problem, found)
        durations = tqdm(measured, title, len(found), unit=" files", mininterval=interval_s)
        for utterance, duration_s in zip(found, durations, strict=True):
            if isinstance(duration_s, DataProblem):
                content.problems.append(duration_s)
            else:
                content.utterances[utterance.id] = replace(utterance, duration_s=duration_s)
    return content


def read_chapter(folder: Path) -> tuple[list[Utterance], list[DataProblem]]:
    """Join the transcripts of a chapter with its FLAC files; durations are not yet known."""
    name = f"{folder.parent.name}-{folder.name}"
    table = folder / f"{name}.trans.txt"
    audio = {path.stem: path for path in folder.glob("*.flac")}
    scan = scan_table(table)
    whole = [problem for problem in scan.problems if not problem.id]
    if whole:
        message = f"{whole[0].message}, so that {len(audio)} FLAC files have no transcript"
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


def measure_audio(path: Path) -> float:
    """Read the header and the end of an audio file; returns its duration in seconds.

    Damage in the middle is found when the audio is formatted, where all of it is decoded.

    Raises:
        AudioError: It is truncated, empty or no audio.
    """
    duration_s = probe_audio(str(path)).duration_s
    start_s = 0.0 if duration_s is None else max(0.0, duration_s - TAIL_S)
    samples, rate_hz = read_audio(str(path), start_s=start_s)
    check_audio(samples, rate_hz)
    return start_s + len(samples) / rate_hz


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
    # Names, which are not used, may be in any encoding.
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
