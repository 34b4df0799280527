"""Validate a Kaldi data directory; the checks are those of Kaldi's validate_data_dir.sh."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.audio.source import is_pipe, source_paths
from espnet_medusa.errors import InputError
from espnet_medusa.kaldi.table import (
    FIX_REMEDY,
    DataError,
    DataProblem,
    TableScan,
    scan_table,
    sort_ids,
)

__all__ = ["DataError", "DataProblem", "ValidationOptions", "make_spk2utt", "validate_data_dir"]

# Kaldi's and ESPnet's own symbols, and Whisper's: as words they would end or confuse decoding.
RESERVED_WORDS = frozenset(
    ["<s>", "</s>", "#0", "<blank>", "<sos/eos>", "<|startoftranscript|>", "<|endoftext|>"]
)


@dataclass(frozen=True)
class ValidationOptions:
    """What to check.

    Attributes:
        require_text: Whether every utterance needs a transcript.
        allow_pipes: Whether wav.scp may hold commands.
        check_audio_files: Whether the files that wav.scp names must exist.
        check_speakers: Whether utt2spk and spk2utt must exist and agree.
        check_speaker_order: Whether sorting by speaker must keep the order of utterances, as
            Kaldi wants; nothing in ESPnet needs it.
    """

    require_text: bool = True
    allow_pipes: bool = False
    check_audio_files: bool = True
    check_speakers: bool = True
    check_speaker_order: bool = True


@dataclass
class _Check:
    """The state of one validation."""

    folder: Path
    options: ValidationOptions
    problems: list[DataProblem] = field(default_factory=list)
    unreadable_ids: set[str] = field(default_factory=set)

    def add(self, file: str, key: str, message: str, remedy: str) -> None:
        self.problems.append(DataProblem(str(self.folder / file), key, message, remedy))

    def scan(self, file: str, require_value: bool = True) -> TableScan:
        scan = scan_table(self.folder / file, require_value)
        self.problems += scan.problems + scan.warnings
        self.unreadable_ids.update({problem.id for problem in scan.problems} - set(scan.entries))
        return scan

    def exists(self, file: str) -> bool:
        return (self.folder / file).exists()


def validate_data_dir(
    path: str | Path, options: ValidationOptions | None = None
) -> list[DataProblem]:
    """List every defect of a data directory.

    Args:
        path: The directory: wav.scp, text, utt2spk, spk2utt, optionally segments, utt2dur.
        options: What to check; None: the defaults.

    Returns:
        The problems; empty for a valid directory.
    """
    options = options or ValidationOptions()
    check = _Check(Path(path), options)
    if not Path(path).is_dir():
        return [DataProblem(str(path), "", "is no directory", "prepare the data or correct it")]
    wav_scp = check.scan("wav.scp")
    _check_audio_entries(check, wav_scp.entries)
    if check.exists("segments"):
        ids_file, utterances = "segments", check.scan("segments").entries
        _check_segments(check, utterances, wav_scp.entries)
    else:
        ids_file, utterances = "wav.scp", wav_scp.entries
    if options.require_text or check.exists("text"):
        text = check.scan("text", require_value=options.require_text).entries
        _check_same_ids(check, "text", text, ids_file, utterances)
        _check_words(check, text)
    if options.check_speakers:
        _check_speakers(check, ids_file, utterances)
    if check.exists("utt2dur"):
        _check_durations(check, ids_file, utterances)
    return check.problems


def _check_audio_entries(check: _Check, wav_scp: Mapping[str, str]) -> None:
    for key, entry in wav_scp.items():
        if is_pipe(entry):
            if not check.options.allow_pipes:
                check.add("wav.scp", key, f"is a command: {entry}", "give --allow_pipes true")
        elif entry.startswith("~"):
            check.add("wav.scp", key, f"'~' is not expanded: {entry}", "write the whole path")
        elif check.options.check_audio_files:
            for path in source_paths(entry):
                if not path.is_file() or not os.access(path, os.R_OK):
                    check.add(
                        "wav.scp",
                        key,
                        f"{path} is no readable file",
                        "correct the path (relative ones start from the working directory)",
                    )


def _check_segments(check: _Check, segments: Mapping[str, str], wav_scp: Mapping[str, str]) -> None:
    used = set()
    for key, value in segments.items():
        try:
            segment = parse_segment(value)
        except ValueError as error:
            check.add("segments", key, str(error), "correct the line")
            used.update(value.split()[:1])
            continue
        used.add(segment.recording)
        if segment.recording not in wav_scp:
            check.add(
                "segments",
                key,
                f"recording {segment.recording} is not in wav.scp",
                "add it to wav.scp or remove the segment",
            )
    for key in sort_ids(set(wav_scp) - used):
        check.add("wav.scp", key, "no segment uses this recording", f"remove it, or {FIX_REMEDY}")


def _check_same_ids(
    check: _Check, file: str, table: Iterable[str], ids_file: str, utterances: Iterable[str]
) -> None:
    """Name every id that only one of two tables holds."""
    have, want = set(table), set(utterances)
    if not have or not want:
        return  # The table is missing or empty, which is one problem, said already.
    have, want = have - check.unreadable_ids, want - check.unreadable_ids
    for key in sort_ids(want - have):
        check.add(file, key, f"is missing (it is in {ids_file})", f"add it, or {FIX_REMEDY}")
    for key in sort_ids(have - want):
        check.add(file, key, f"is not in {ids_file}", f"add it there, or {FIX_REMEDY}")


def _check_words(check: _Check, text: Mapping[str, str]) -> None:
    for key, transcript in text.items():
        reserved = RESERVED_WORDS.intersection(transcript.split())
        if reserved:
            names = " ".join(sorted(reserved))
            check.add("text", key, f"holds reserved symbols: {names}", "remove them")


def _check_speakers(check: _Check, ids_file: str, utterances: Iterable[str]) -> None:
    missing = [name for name in ("utt2spk", "spk2utt") if not check.exists(name)]
    for name in missing:
        check.add(name, "", "is missing", FIX_REMEDY)
    if missing:
        return
    utt2spk = check.scan("utt2spk").entries
    _check_same_ids(check, "utt2spk", utt2spk, ids_file, utterances)
    for key, speaker in utt2spk.items():
        if len(speaker.split()) > 1:
            check.add("utt2spk", key, f"has more than one speaker: {speaker}", "keep one")
    spk2utt = check.scan("spk2utt").entries
    if not utt2spk or not spk2utt:
        return  # An empty table is one problem, said already.
    wanted = make_spk2utt(utt2spk)
    for speaker in sort_ids(set(wanted) | set(spk2utt)):
        if sorted(wanted.get(speaker, "").split()) != sorted(spk2utt.get(speaker, "").split()):
            check.add("spk2utt", speaker, "disagrees with utt2spk", FIX_REMEDY)
    if check.options.check_speaker_order:
        _check_speaker_order(check, utt2spk)


def _check_speaker_order(check: _Check, utt2spk: Mapping[str, str]) -> None:
    speakers = [utt2spk[key].encode("utf-8") for key in sort_ids(utt2spk)]
    for key, before, speaker in zip(sort_ids(utt2spk)[1:], speakers, speakers[1:], strict=False):
        if speaker < before:
            check.add(
                "utt2spk",
                key,
                f"speaker {speaker.decode()} sorts before {before.decode()} of the line above",
                "make the speaker a prefix of the utterance id, or give --speaker_order false",
            )
            return


def _check_durations(check: _Check, ids_file: str, utterances: Iterable[str]) -> None:
    durations = check.scan("utt2dur").entries
    _check_same_ids(check, "utt2dur", durations, ids_file, utterances)
    for key, value in durations.items():
        try:
            is_positive = float(value) > 0
        except ValueError:
            is_positive = False
        if not is_positive:
            check.add("utt2dur", key, f"duration {value} is not positive", "correct or remove it")


def make_spk2utt(utt2spk: Mapping[str, str]) -> dict[str, str]:
    """Turn utt2spk around: speaker to its utterances, sorted, joined by spaces."""
    utterances: dict[str, list[str]] = {}
    for key in sort_ids(utt2spk):
        utterances.setdefault(utt2spk[key], []).append(key)
    return {speaker: " ".join(keys) for speaker, keys in utterances.items()}


@dataclass(frozen=True)
class Segment:
    """A part of a recording.

    Attributes:
        recording: Key of wav.scp.
        start_s: Where it starts.
        end_s: Where it ends; -1 is the recording's end, as in Kaldi.
    """

    recording: str
    start_s: float
    end_s: float


def parse_segment(value: str) -> Segment:
    """Read `<recording> <start> <end>`.

    Raises:
        InputError: The fields are not three, no numbers, or end is not after start.
    """
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
    return Segment(fields[0], start_s, end_s)
