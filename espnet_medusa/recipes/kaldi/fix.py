"""Repair a Kaldi data directory: keep the complete utterances, sort, regenerate spk2utt."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.data_dir import make_spk2utt, parse_segment
from espnet_medusa.data.kaldi.table import (
    DataError,
    DataProblem,
    TableScan,
    scan_table,
    write_table,
)
from espnet_medusa.data.kaldi.utterances import EXTRA_TABLES

MAIN_TABLES = ("wav.scp", "segments", "text", "utt2spk")
DURATIONS = "utt2dur"
# Keyed by utterance. An utterance may be missing in all but ``DURATIONS``.
OPTIONAL_TABLES = (DURATIONS, "utt2num_frames", "utt2num_samples", "utt2uniq", *EXTRA_TABLES)
BACKUP = ".backup"


@dataclass
class FixReport:
    n_kept: int = 0  # utterances that remain
    dropped: list[DataProblem] = field(default_factory=list)  # utterances, recordings, lines
    generated: list[str] = field(default_factory=list)  # tables that were missing

    def drop(self, path: Path, key: str, reason: str) -> None:
        self.dropped.append(DataProblem(str(path), key, reason, "dropped"))


def fix_data_dir(path: str | Path, allow_empty_text: bool = False) -> FixReport:
    """Keep the utterances that are in all tables, sort every table, regenerate spk2utt.

    Copies the old tables to `.backup` in the directory first; those of an earlier call are
    replaced. Without utt2spk, each utterance becomes its own speaker. Optional tables without a
    good line and an incomplete utt2dur are removed. With ``allow_empty_text``, utterances with an
    empty transcript are kept. Raises DataError, without a change, if no
    utterance would be left.
    """
    folder = Path(path)
    scans = {name: scan_table(folder / name) for name in MAIN_TABLES if (folder / name).exists()}
    report = FixReport()
    tables = {
        name: _good_entries(folder / name, scan, report, allow_empty_text and name == "text")
        for name, scan in scans.items()
    }
    if "wav.scp" not in tables:
        raise DataError([DataProblem(str(folder / "wav.scp"), "", "is missing", "create it")])
    if "segments" in tables:
        for key, value in list(tables["segments"].items()):
            try:
                parse_segment(value, tables["wav.scp"])
            except InputError as error:
                report.drop(folder / "segments", key, str(error))
                del tables["segments"][key]
    if "utt2spk" not in tables:
        tables["utt2spk"] = {key: key for key in tables.get("segments", tables["wav.scp"])}
        report.generated.append("utt2spk")
    by_utterance = dict(tables)
    if "segments" in tables:
        del by_utterance["wav.scp"]
    complete = set.intersection(*map(set, by_utterance.values()))
    for key in sorted(set().union(*by_utterance.values()) - complete):
        absent = [name for name, table in by_utterance.items() if key not in table]
        report.drop(folder, key, f"is missing in {' and '.join(absent)}")
    if not complete:
        sizes = ", ".join(f"{name} ({len(table)} good lines)" for name, table in tables.items())
        message = f"no utterance is in all of {sizes}"
        raise DataError([DataProblem(str(folder), "", message, "compare the ids of the tables")])
    (folder / BACKUP).mkdir(exist_ok=True)
    for name in (*MAIN_TABLES, "spk2utt", *OPTIONAL_TABLES):
        if (folder / name).exists():
            shutil.copy2(folder / name, folder / BACKUP / name)
    _write(folder, tables, complete, report)
    report.n_kept = len(complete)
    return report


def _good_entries(
    path: Path, scan: TableScan, report: FixReport, allow_empty: bool = False
) -> dict[str, str]:
    """Return the unambiguous entries; identical repeated lines count once."""
    entries = dict(scan.entries)
    for key, values in scan.repeats.items():
        if any(value != entries[key] for value in values):
            report.drop(path, key, "has several lines that differ")
            del entries[key]
    for key in [key for key, value in entries.items() if not (value or allow_empty)]:
        report.drop(path, key, "has no value")
        del entries[key]
    report.dropped += [
        problem for problem in scan.problems if problem.id and problem.id not in scan.entries
    ]
    return entries


def _write(folder: Path, tables: dict, complete: set[str], report: FixReport) -> None:
    recordings = complete
    if "segments" in tables:
        recordings = {parse_segment(tables["segments"][key]).recording for key in complete}
        for key in sorted(set(tables["wav.scp"]) - recordings):
            report.drop(folder / "wav.scp", key, "no segment uses this recording")
    if not (folder / "spk2utt").exists():
        report.generated.append("spk2utt")
    for name in OPTIONAL_TABLES:
        if (folder / name).exists():
            tables[name] = _good_entries(folder / name, scan_table(folder / name), report)
    for name, table in tables.items():
        ids = recordings if name == "wav.scp" else complete
        good = {key: table[key] for key in table if key in ids}
        if good and (name != DURATIONS or len(good) == len(ids)):
            write_table(folder / name, good)
        else:
            (folder / name).unlink()  # optional, and an error otherwise
    utt2spk = {key: tables["utt2spk"][key] for key in complete}
    write_table(folder / "spk2utt", make_spk2utt(utt2spk))
