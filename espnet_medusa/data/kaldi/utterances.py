"""The utterances of a data directory, and the problems of those that cannot be used."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.data.audio.source import source_paths
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.data_dir import RENAME, bad_labels, find_reserved_words, parse_segment
from espnet_medusa.data.kaldi.table import (
    DataError,
    DataProblem,
    TableScan,
    join_words,
    scan_table,
    sort_ids,
)

# Optional tables: the language; the length penalty's start and factor, which decoding ignores.
EXTRA_TABLES = ("utt2lang", "utt2regulation")


@dataclass(frozen=True)
class Utterance:
    id: str
    entry: str  # value of wav.scp
    start_s: float = 0.0  # start of the utterance in the audio
    end_s: float = -1.0  # end of the utterance; -1 is the end of the audio
    speed: float = 1.0  # factor to speed up by; 1 leaves the audio unchanged

    @property
    def is_whole_file(self) -> bool:
        """Whether the entry's audio is the utterance, unchanged."""
        return self.start_s == 0 and self.end_s < 0 and self.speed == 1


@dataclass
class UtteranceSet:
    """The content of a data directory, joined by utterance."""

    utterances: list[Utterance]  # those without a problem, sorted by id
    tables: dict[str, dict[str, str]]  # utt2spk; text and `EXTRA_TABLES` if they exist
    problems: list[DataProblem]  # one for each utterance (or line) that cannot be used
    files: list[Path]  # the tables that were read

    @property
    def audio_files(self) -> list[Path]:
        """The files that the utterances are read from; none for commands."""
        return [path for utterance in self.utterances for path in source_paths(utterance.entry)]


def collect_utterances(
    data_dir: str | Path,
    require_text: bool = True,
    allow_empty_text: bool = False,
    scored: bool = False,
) -> UtteranceSet:
    """Join the tables of a data directory by id; every id is an utterance or a problem.

    The tables are wav.scp, and optionally segments, text, utt2spk and `EXTRA_TABLES`. The other
    arguments are those of ``FormatOptions``. Raises DataError if a whole table is missing, empty or
    unreadable.
    """
    folder = Path(data_dir)
    needed = {"wav.scp", "text"} if require_text else {"wav.scp"}
    scans = {
        name: scan_table(folder / name, require_value=name != "text" or not allow_empty_text)
        for name in ("wav.scp", "segments", "text", "utt2spk")
        if name in needed or (folder / name).exists()
    }
    extra = {name: scan_table(folder / name) for name in EXTRA_TABLES if (folder / name).exists()}
    all_scans = scans | extra
    whole = [problem for scan in all_scans.values() for problem in scan.problems if not problem.id]
    if whole:
        raise DataError(whole)
    by_id: dict[str, DataProblem] = {}
    for name, scan in all_scans.items():
        if name != "wav.scp" or "segments" not in scans:
            for problem in scan.problems:
                by_id.setdefault(problem.id, problem)
    utterances = _make_utterances(folder, scans, by_id)
    _add_missing_ids(folder, scans, by_id)
    text = scans["text"].entries if "text" in scans else {}
    text.update({key: join_words(words) for key, words in text.items()})
    for key in sort_ids(set(text) - set(by_id)):
        if reserved := find_reserved_words(text[key]):
            message = f"has reserved symbols: {reserved}"
            by_id[key] = DataProblem(str(folder / "text"), key, message, "remove them")
    speakers = scans["utt2spk"].entries if "utt2spk" in scans else {key: key for key in utterances}
    for key, message in bad_labels(speakers).items() if scored else ():
        by_id.setdefault(key, DataProblem(str(folder / "utt2spk"), key, message, RENAME))
    good = sort_ids(set(utterances) - set(by_id))
    tables = {name: scan.entries for name, scan in all_scans.items()}
    tables.setdefault("utt2spk", {key: key for key in good})
    return UtteranceSet(
        utterances=[utterances[key] for key in good],
        tables={
            name: {key: tables[name][key] for key in good if key in tables[name]}
            for name in tables.keys() - {"wav.scp", "segments"}
        },
        problems=[by_id[key] for key in sort_ids(by_id)],
        files=[folder / name for name in all_scans],
    )


def _make_utterances(
    folder: Path, scans: Mapping[str, TableScan], by_id: dict[str, DataProblem]
) -> dict[str, Utterance]:
    """Build utterances from segments, or else from wav.scp; add bad segments to `by_id`."""
    wav_scp = scans["wav.scp"].entries
    if "segments" not in scans:
        return {key: Utterance(key, entry) for key, entry in wav_scp.items()}
    bad_recordings = {problem.id: problem for problem in scans["wav.scp"].problems}
    recordings = wav_scp.keys() | bad_recordings.keys()
    utterances = {}
    for key, value in scans["segments"].entries.items():
        if key in by_id:
            continue
        try:
            segment = parse_segment(value, recordings)
        except InputError as error:
            file, remedy = str(folder / "segments"), "correct or remove the line"
            by_id[key] = DataProblem(file, key, str(error), remedy)
            continue
        if segment.recording in bad_recordings:
            problem = bad_recordings[segment.recording]
            message = f"recording {problem.id} {problem.message}"
            by_id[key] = DataProblem(problem.file, key, message, problem.remedy)
        else:
            entry = wav_scp[segment.recording]
            utterances[key] = Utterance(key, entry, segment.start_s, segment.end_s)
    return utterances


def _add_missing_ids(
    folder: Path, scans: Mapping[str, TableScan], by_id: dict[str, DataProblem]
) -> None:
    """Add a problem for each id that some table lacks."""
    names = [name for name in scans if name != "wav.scp" or "segments" not in scans]
    every_id: set[str] = set().union(*(scans[name].entries for name in names))
    for key in sort_ids(every_id - set(by_id)):
        present = next(name for name in names if key in scans[name].entries)
        absent = next((name for name in names if key not in scans[name].entries), None)
        if absent is not None:
            message = f"is missing (it is in {present})"
            remedy = f"add it, or remove it from {present}"
            by_id[key] = DataProblem(str(folder / absent), key, message, remedy)
