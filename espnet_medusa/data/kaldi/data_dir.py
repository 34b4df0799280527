"""Kaldi data directories: segments, speakers, and the checks of Kaldi's validate_data_dir.sh."""

import math
import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from espnet_medusa.data.audio.source import is_pipe, source_paths
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import FIX_REMEDY, DataProblem, TableScan, scan_table, sort_ids
from espnet_medusa.data.options import option

# Symbols of Kaldi, ESPnet and Whisper, which would become special tokens in a transcript.
RESERVED_WORDS = frozenset(
    ["<s>", "</s>", "#0", "<blank>", "<sos/eos>", "<|startoftranscript|>", "<|endoftext|>"]
)


ALLOW_EMPTY = "whether a transcript may be empty, as that of a test utterance without speech"
RENAME = "rename the utterance or its speaker"
SCORED = "whether ids must have distinct labels in scoring, without parentheses"


@dataclass(frozen=True)
class ValidationOptions:
    require_text: bool = option(True, "whether every utterance needs a transcript")
    allow_empty_text: bool = option(False, ALLOW_EMPTY)
    allow_pipes: bool = option(False, "whether wav.scp may contain commands")
    speaker_order: bool = option(True, "whether sorting by id must sort by speaker, as in Kaldi")
    scored: bool = option(True, SCORED)


@dataclass(frozen=True)
class Segment:
    recording: str  # key of wav.scp
    start_s: float  # start in the recording
    end_s: float  # end in the recording; -1 is the recording's end, as in Kaldi


def parse_segment(value: str, recordings: Container[str] | None = None) -> Segment:
    """Parse `<recording> <start> <end>`; raise InputError for other text and other recordings."""
    fields = value.split()
    if len(fields) != 3:
        raise InputError(f"has {len(fields) + 1} fields, not 4 (utterance recording start end)")
    try:
        start_s, end_s = float(fields[1]), float(fields[2])
    except ValueError:
        raise InputError(f"has times that are no numbers: {fields[1]} {fields[2]}") from None
    if not (math.isfinite(start_s) and math.isfinite(end_s)) or start_s < 0:
        raise InputError(f"has impossible times: {fields[1]} {fields[2]}")
    if end_s != -1 and end_s <= start_s:
        raise InputError(f"ends at {fields[2]} s, not after its start at {fields[1]} s")
    if recordings is not None and fields[0] not in recordings:
        raise InputError(f"recording {fields[0]} is not in wav.scp")
    return Segment(fields[0], start_s, end_s)


def make_spk2utt(utt2spk: Mapping[str, str]) -> dict[str, str]:
    """Invert utt2spk: speaker to its utterances, sorted, joined by spaces."""
    utterances: dict[str, list[str]] = {}
    for key in sort_ids(utt2spk):
        utterances.setdefault(utt2spk[key], []).append(key)
    return {speaker: " ".join(keys) for speaker, keys in utterances.items()}


def bad_labels(utt2spk: Mapping[str, str]) -> dict[str, str]:
    """Return why ids cannot be scored: the label `(speaker-utterance)` is ambiguous."""
    bad: dict[str, str] = {}
    first: dict[str, str] = {}
    for key in sort_ids(utt2spk):
        label = f"{utt2spk[key]}-{key}"
        if odd := {*label} & {*"()\0"}:
            bad[key] = f"its label in scoring, '{label}', has {min(odd)!r}"
        elif first.setdefault(label, key) != key:
            bad[key] = f"its label in scoring, '{label}', is also that of {first[label]}"
    return bad


def find_reserved_words(transcript: str) -> str:
    """Return the reserved words of a transcript, sorted, joined by spaces."""
    return " ".join(sorted(RESERVED_WORDS.intersection(transcript.split())))


def validate_data_dir(
    path: str | Path, options: ValidationOptions | None = None
) -> list[DataProblem]:
    """List all defects of a directory of wav.scp, text, utt2spk, spk2utt, segments and utt2dur."""
    if not Path(path).is_dir():
        return [DataProblem(str(path), "", "is no directory", "correct the path")]
    return _Validation(Path(path), options or ValidationOptions()).run()


class _Validation:
    def __init__(self, folder: Path, options: ValidationOptions):
        self.folder, self.options = folder, options
        self.problems: list[DataProblem] = []
        self.unreadable_ids: set[str] = set()
        # The table that defines the utterances, and its lines.
        self.ids_file, self.utterances = "wav.scp", {}

    def add(self, file: str, key: str, message: str, remedy: str) -> None:
        self.problems.append(DataProblem(str(self.folder / file), key, message, remedy))

    def scan(self, file: str, require_value: bool = True) -> dict[str, str]:
        scan: TableScan = scan_table(self.folder / file, require_value)
        self.problems += scan.problems + scan.warnings
        self.unreadable_ids.update({problem.id for problem in scan.problems} - set(scan.entries))
        return scan.entries

    def scan_fixable(self, file: str) -> dict[str, str]:
        if self.exists(file):
            return self.scan(file)
        self.add(file, "", "is missing", FIX_REMEDY)
        return {}

    def exists(self, file: str) -> bool:
        return (self.folder / file).exists()

    def run(self) -> list[DataProblem]:
        wav_scp = self.utterances = self.scan("wav.scp")
        self.check_audio_entries(wav_scp)
        if self.exists("segments"):
            self.ids_file, self.utterances = "segments", self.scan("segments")
            self.check_segments(wav_scp)
        if self.options.require_text or self.exists("text"):
            needs_words = self.options.require_text and not self.options.allow_empty_text
            text = self.scan("text", needs_words)
            self.check_same_ids("text", text)
            for key, transcript in text.items():
                if reserved := find_reserved_words(transcript):
                    self.add("text", key, f"has reserved symbols: {reserved}", "remove them")
        self.check_speakers()
        if self.exists("utt2dur"):
            self.check_durations()
        return self.problems

    def check_audio_entries(self, wav_scp: Mapping[str, str]) -> None:
        for key, entry in wav_scp.items():
            if is_pipe(entry):
                if not self.options.allow_pipes:
                    self.add("wav.scp", key, f"is a command: {entry}", "give --allow_pipes true")
            elif entry.startswith("~"):
                self.add("wav.scp", key, f"'~' is not expanded: {entry}", "write the whole path")
            else:
                for path in source_paths(entry):
                    if not path.is_file() or not os.access(path, os.R_OK):
                        remedy = "correct the path (relative to the working directory)"
                        self.add("wav.scp", key, f"{path} is no readable file", remedy)

    def check_segments(self, wav_scp: Mapping[str, str]) -> None:
        used = set()
        for key, value in self.utterances.items():
            used.update(value.split()[:1])
            try:
                parse_segment(value, wav_scp)
            except InputError as error:
                self.add("segments", key, str(error), "correct or remove the line")
        for key in sort_ids(set(wav_scp) - used):
            remedy = f"remove it, or {FIX_REMEDY}"
            self.add("wav.scp", key, "no segment uses this recording", remedy)

    def check_same_ids(self, file: str, table: Iterable[str]) -> None:
        """Report each id that is in `table` or in the utterances, but not in both."""
        ids, expected = set(table), set(self.utterances)
        if not ids or not expected:
            return  # A missing or empty table is one problem, which is reported already.
        for key in sort_ids(expected - ids - self.unreadable_ids):
            message = f"is missing (it is in {self.ids_file})"
            self.add(file, key, message, f"add it, or {FIX_REMEDY}")
        for key in sort_ids(ids - expected - self.unreadable_ids):
            self.add(file, key, f"is not in {self.ids_file}", f"add it there, or {FIX_REMEDY}")

    def check_speakers(self) -> None:
        utt2spk, spk2utt = map(self.scan_fixable, ("utt2spk", "spk2utt"))
        self.check_same_ids("utt2spk", utt2spk)
        for key, message in bad_labels(utt2spk).items() if self.options.scored else ():
            self.add("utt2spk", key, message, RENAME)
        if utt2spk and spk2utt:  # A missing or empty table is one problem, reported already.
            expected = make_spk2utt(utt2spk)
            for speaker in sort_ids(set(expected) | set(spk2utt)):
                listed = spk2utt.get(speaker, "").split()
                if sorted(expected.get(speaker, "").split()) != sorted(listed):
                    self.add("spk2utt", speaker, "disagrees with utt2spk", FIX_REMEDY)
        for before, key in pairwise(sort_ids(utt2spk)) if self.options.speaker_order else ():
            first, second = utt2spk[before], utt2spk[key]
            if second.encode("utf-8") < first.encode("utf-8"):
                message = f"speaker {second} sorts before {first} of the previous id"
                remedy = "make the speaker a prefix of the utterance id, or "
                self.add("utt2spk", key, message, remedy + "give --speaker_order false")
                return

    def check_durations(self) -> None:
        durations = self.scan("utt2dur")
        self.check_same_ids("utt2dur", durations)
        for key, value in durations.items():
            try:
                is_positive = float(value) > 0
            except ValueError:
                is_positive = False
            if not is_positive:
                message = f"duration {value} is not positive"
                self.add("utt2dur", key, message, "correct or remove it")
