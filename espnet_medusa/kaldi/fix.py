"""Mend a Kaldi data directory: keep what is complete, sort, regenerate spk2utt."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from espnet_medusa.kaldi.data_dir import make_spk2utt, parse_segment
from espnet_medusa.kaldi.table import DataError, DataProblem, TableScan, scan_table, write_table

# Tables keyed by utterance that follow the others but do not decide what is kept.
FOLLOWING_TABLES = ("utt2dur", "utt2num_frames", "utt2num_samples", "utt2lang", "utt2uniq")
BACKUP = ".backup"


@dataclass
class FixReport:
    """What the fixer did.

    Attributes:
        n_kept: Utterances that remain.
        dropped: One problem for each utterance, recording or line that was dropped.
        generated: Tables that were missing and are now made.
    """

    n_kept: int = 0
    dropped: list[DataProblem] = field(default_factory=list)
    generated: list[str] = field(default_factory=list)


def fix_data_dir(path: str | Path) -> FixReport:
    """Keep the utterances that all tables know, sort every table, regenerate spk2utt.

    The old tables are copied to `.backup` in the directory first. Without utt2spk, each
    utterance becomes its own speaker.

    Args:
        path: The data directory.

    Returns:
        What was kept, dropped and generated.

    Raises:
        DataError: No utterance would be left; nothing is changed then.
    """
    folder = Path(path)
    names = ["wav.scp", "segments", "text", "utt2spk"]
    scans = {name: scan_table(folder / name) for name in names if (folder / name).exists()}
    report = FixReport()
    tables = {name: _good_entries(folder / name, scan, report) for name, scan in scans.items()}
    if "wav.scp" not in tables:
        raise DataError([DataProblem(str(folder / "wav.scp"), "", "is missing", "create it")])
    if "segments" in tables:
        _drop_bad_segments(folder, tables, report)
    utterances = tables.get("segments", tables["wav.scp"])
    if "utt2spk" not in tables:
        tables["utt2spk"] = {key: key for key in utterances}
        report.generated.append("utt2spk")
    kept = _intersect(folder, tables, report)
    if not kept:
        sizes = ", ".join(f"{name} ({len(table)} good lines)" for name, table in tables.items())
        message = f"no utterance is in all of {sizes}"
        raise DataError([DataProblem(str(folder), "", message, "compare the ids of the tables")])
    _back_up(folder, [*names, "spk2utt", *FOLLOWING_TABLES])
    _write(folder, tables, kept, report)
    report.n_kept = len(kept)
    return report


def _good_entries(path: Path, scan: TableScan, report: FixReport) -> dict[str, str]:
    """Take the lines that say one clear thing; identical repeats count once."""
    entries = dict(scan.entries)
    for key, values in scan.repeats.items():
        if any(value != entries[key] for value in values):
            _drop(report, path, key, "has several lines that differ")
            del entries[key]
    for key in [key for key, value in entries.items() if not value]:
        _drop(report, path, key, "has no value")
        del entries[key]
    report.dropped += [
        problem for problem in scan.problems if problem.id and problem.id not in scan.entries
    ]
    return entries


def _drop(report: FixReport, path: Path, key: str, reason: str) -> None:
    report.dropped.append(DataProblem(str(path), key, reason, "dropped"))


def _drop_bad_segments(folder: Path, tables: dict, report: FixReport) -> None:
    for key, value in list(tables["segments"].items()):
        try:
            recording = parse_segment(value).recording
            reason = "" if recording in tables["wav.scp"] else f"{recording} is not in wav.scp"
        except ValueError as error:
            reason = str(error)
        if reason:
            _drop(report, folder / "segments", key, reason)
            del tables["segments"][key]


def _intersect(folder: Path, tables: dict, report: FixReport) -> set[str]:
    utterance_tables = {
        name: table
        for name, table in tables.items()
        if name != "wav.scp" or "segments" not in tables
    }
    kept = set.intersection(*(set(table) for table in utterance_tables.values()))
    for key in sorted(set().union(*utterance_tables.values()) - kept):
        absent = [name for name, table in utterance_tables.items() if key not in table]
        _drop(report, folder, key, f"is missing in {' and '.join(absent)}")
    return kept


def _back_up(folder: Path, names: list[str]) -> None:
    backup = folder / BACKUP
    backup.mkdir(exist_ok=True)
    for name in names:
        if (folder / name).exists():
            shutil.copy2(folder / name, backup / name)


def _write(folder: Path, tables: dict, kept: set[str], report: FixReport) -> None:
    if "segments" in tables:
        used = {parse_segment(tables["segments"][key]).recording for key in kept}
        for key in sorted(set(tables["wav.scp"]) - used):
            _drop(report, folder / "wav.scp", key, "no segment uses this recording")
    else:
        used = kept
    for name, table in tables.items():
        wanted = used if name == "wav.scp" else kept
        write_table(folder / name, {key: table[key] for key in table if key in wanted})
    if not (folder / "spk2utt").exists():
        report.generated.append("spk2utt")
    utt2spk = {key: tables["utt2spk"][key] for key in kept}
    write_table(folder / "spk2utt", make_spk2utt(utt2spk))
    for name in FOLLOWING_TABLES:
        if (folder / name).exists():
            entries = scan_table(folder / name).entries
            write_table(folder / name, {key: entries[key] for key in entries if key in kept})
