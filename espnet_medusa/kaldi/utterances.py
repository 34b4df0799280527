"""The utterances of a data directory, and what keeps others from being used."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.kaldi.data_dir import RESERVED_WORDS, parse_segment
from espnet_medusa.kaldi.table import DataError, DataProblem, TableScan, scan_table, sort_ids

# What else is known of an utterance: its language; start and factor of its length penalty.
NOTES = ("utt2lang", "utt2regulation")


@dataclass(frozen=True)
class Utterance:
    """Audio to read.

    Attributes:
        id: Utterance id.
        entry: Value of wav.scp.
        start_s: Where the utterance starts in it.
        end_s: Where it ends; -1 is the end.
        speed: Factor to speak faster by; 1 leaves the audio alone.
    """

    id: str
    entry: str
    start_s: float = 0.0
    end_s: float = -1.0
    speed: float = 1.0

    @property
    def is_whole_file(self) -> bool:
        """Whether the entry's audio is the utterance, unchanged."""
        return self.start_s == 0 and self.end_s < 0 and self.speed == 1


@dataclass
class UtteranceSet:
    """What a data directory offers.

    Attributes:
        utterances: Those without a problem, sorted by id.
        text: Id to transcript; empty if the directory has none.
        utt2spk: Id to speaker.
        problems: One for each utterance (or line) that cannot be used.
        tables: The files that were read.
        notes: Tables of `NOTES` that the directory has, by name; ids may be missing in them.
    """

    utterances: list[Utterance] = field(default_factory=list)
    text: dict[str, str] = field(default_factory=dict)
    utt2spk: dict[str, str] = field(default_factory=dict)
    problems: list[DataProblem] = field(default_factory=list)
    tables: list[Path] = field(default_factory=list)
    notes: dict[str, dict[str, str]] = field(default_factory=dict)


def collect_utterances(
    data_dir: str | Path, require_text: bool = True, allow_empty_text: bool = False
) -> UtteranceSet:
    """Join the tables of a data directory by id; every id is an utterance or a problem.

    Args:
        data_dir: Directory with wav.scp, optionally segments, text, utt2spk and `NOTES`.
        require_text: Whether an utterance needs a line in text.
        allow_empty_text: Whether that line may hold the id alone.

    Raises:
        DataError: A whole table is missing, empty or unreadable.
    """
    folder = Path(data_dir)
    names = ["wav.scp"] + [
        name
        for name in ("segments", "text", "utt2spk")
        if (folder / name).exists() or (name == "text" and require_text)
    ]
    scans = {
        name: scan_table(folder / name, _needs_value(name, allow_empty_text)) for name in names
    }
    notes = {name: scan_table(folder / name) for name in NOTES if (folder / name).exists()}
    read = scans | notes
    whole = [problem for scan in read.values() for problem in scan.problems if not problem.id]
    if whole:
        raise DataError(whole)
    by_id: dict[str, DataProblem] = {}
    for name in [name for name in read if name != "wav.scp" or "segments" not in names]:
        for problem in read[name].problems:
            by_id.setdefault(problem.id, problem)
    utterances = _make_utterances(folder, scans, by_id)
    _check_ids(folder, scans, by_id)
    text = scans["text"].entries if "text" in scans else {}
    for key in sort_ids(set(text) - set(by_id)):
        reserved = " ".join(sorted(RESERVED_WORDS.intersection(text[key].split())))
        if reserved:
            message = f"holds reserved symbols: {reserved}"
            by_id[key] = DataProblem(str(folder / "text"), key, message, "remove them")
    good = sort_ids(set(utterances) - set(by_id))
    utt2spk = scans["utt2spk"].entries if "utt2spk" in scans else {key: key for key in good}
    return UtteranceSet(
        utterances=[utterances[key] for key in good],
        text={key: text[key] for key in good if key in text},
        utt2spk={key: utt2spk[key] for key in good},
        problems=[by_id[key] for key in sort_ids(by_id)],
        tables=[folder / name for name in read],
        notes={
            name: {key: scan.entries[key] for key in good if key in scan.entries}
            for name, scan in notes.items()
        },
    )


def _needs_value(name: str, allow_empty_text: bool) -> bool:
    return name != "text" or not allow_empty_text


def _make_utterances(
    folder: Path, scans: Mapping[str, TableScan], by_id: dict[str, DataProblem]
) -> dict[str, Utterance]:
    """Turn segments, or else wav.scp, into utterances; notes bad segments in `by_id`."""
    wav_scp = scans["wav.scp"].entries
    if "segments" not in scans:
        return {key: Utterance(key, entry) for key, entry in wav_scp.items()}
    bad_recordings = {problem.id: problem for problem in scans["wav.scp"].problems}
    utterances = {}
    for key, value in scans["segments"].entries.items():
        if key in by_id:
            continue
        try:
            segment = parse_segment(value)
        except ValueError as error:
            by_id[key] = DataProblem(str(folder / "segments"), key, str(error), "correct the line")
            continue
        if segment.recording in bad_recordings:
            problem = bad_recordings[segment.recording]
            message = f"recording {problem.id} {problem.message}"
            by_id[key] = DataProblem(problem.file, key, message, problem.remedy)
        elif segment.recording not in wav_scp:
            message = f"recording {segment.recording} is not in wav.scp"
            remedy = "add it to wav.scp or remove the segment"
            by_id[key] = DataProblem(str(folder / "segments"), key, message, remedy)
        else:
            entry = wav_scp[segment.recording]
            utterances[key] = Utterance(key, entry, segment.start_s, segment.end_s)
    return utterances


def _check_ids(folder: Path, scans: Mapping[str, TableScan], by_id: dict[str, DataProblem]) -> None:
    """Name the ids that some table lacks."""
    names = [name for name in scans if name != "wav.scp" or "segments" not in scans]
    every_id: Iterable[str] = set().union(*(scans[name].entries for name in names))
    for key in sort_ids(set(every_id) - set(by_id)):
        absent = [name for name in names if key not in scans[name].entries]
        if absent:
            present = next(name for name in names if name not in absent)
            by_id[key] = DataProblem(
                str(folder / absent[0]),
                key,
                f"is missing (it is in {present})",
                f"add it, or remove it from {present}",
            )
