"""Files of parallel jobs: a stage's input is split over them, and their outputs are joined."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from espnet_medusa.data.errors import list_some
from espnet_medusa.data.kaldi.table import read_results, read_table, split_scp, write_table
from espnet_medusa.decoding.search.statistics import (
    DecodingStatistics,
    read_statistics,
    write_statistics,
)
from espnet_medusa.inference.journal import SHORT
from espnet_medusa.inference.longform.segment import CTM, SEGMENTS, TABLES, put_segments_dir
from espnet_medusa.recipes.divide_results import divide_results

RESULT_FILES = ("text", "token", "token_int", "score", "text_nospecial")  # the last one: s2t


def split_keys(
    inputs: Sequence[Path | str],
    outputs: Sequence[str],
    jobs: int,
    work_dir: Path | str | None = None,
    resume: bool = True,
) -> tuple[int, str]:
    """Split each input into runs of consecutive lines; return their number, at most `jobs`.

    Also return a note on finished results that a changed split keeps.

    Args:
        inputs: Kaldi tables: each line begins with an id.
        outputs: For each input, the name of its parts, with `JOB` for the job's number.
        work_dir: Folder of the jobs' outputs. If the split has changed, the journals of finished
            utterances are divided anew, and all else is removed. Without ``resume``, it is removed.
    """
    tables = []
    for path, pattern in zip(inputs, outputs, strict=True):
        if "JOB" not in pattern:
            raise ValueError(f"{pattern}: the name of the parts must contain JOB")
        tables.append(read_table(path, require_value=False))
    count = min(jobs, *(len(table) for table in tables))
    parts = {
        Path(pattern.replace("JOB", str(job))): {key: table[key] for key in keys}
        for table, pattern in zip(tables, outputs, strict=True)
        for job, keys in enumerate(split_scp(list(table), count), 1)
    }
    note = ""
    if work_dir is not None and not resume:
        shutil.rmtree(work_dir, ignore_errors=True)
    elif work_dir is not None and not _same_parts(parts, outputs):
        kept = divide_results(Path(work_dir), list(parts.values())[:count])
        if kept:
            what = f"{kept} of {len(tables[0])} utterances keep their results"
            note = f"{work_dir}: another list of utterances or number of jobs ({count}); {what}"
    for path, part in parts.items():
        write_table(path, part)
    return count, note


def _same_parts(parts: Mapping[Path, Mapping[str, str]], outputs: Sequence[str]) -> bool:
    patterns = (Path(name.replace("JOB", "[0-9]*")) for name in outputs)
    existing = {path for pattern in patterns for path in pattern.parent.glob(pattern.name)}
    return existing == set(parts) and all(
        read_table(path, require_value=False) == part for path, part in parts.items()
    )


def job_folders(log_dir: Path) -> list[Path]:
    """Return the folders `output.1`, `output.2`, ...; raise ValueError if there is none."""
    folders = {int(p.suffix[1:]): p for p in log_dir.glob("output.*") if p.suffix[1:].isdigit()}
    if not folders:
        raise ValueError(f"{log_dir}: no output.1; no inference job has run here")
    return [folders[number] for number in sorted(folders)]


def _join(folders: Sequence[Path], name: str) -> dict[str, str]:
    joined: dict[str, str] = {}
    for path in (folder / name for folder in folders):
        values = read_results(path)
        if twice := joined.keys() & values.keys():
            raise ValueError(f"{path}: another job has the same ids: {list_some(sorted(twice))}")
        joined |= values
    return joined


def merge_results(keys: Path, log_dir: Path, output_dir: Path) -> tuple[set[str], dict[str, str]]:
    """Join ``RESULT_FILES`` and failed_utterances of all jobs, sorted by id.

    Return the ids with a text, and the reason of each failure by id. With ``failed_as_empty``,
    failed ids have an empty text. Raise ValueError if an id of ``keys`` has neither a text nor a
    reason (its job failed), or words and a reason.
    """
    folders = job_folders(log_dir)
    failed = _join(folders, "failed_utterances")
    merged = {name: _join(folders, f"1best_recog/{name}") for name in RESULT_FILES}
    for name, table in merged.items():
        if name == "text" or table:
            write_table(output_dir / name, table)
    texts = merged["text"]
    if lost := read_table(keys, require_value=False).keys() - texts.keys() - failed.keys():
        raise ValueError(
            f"{len(lost)} utterances of {keys} have neither a result nor a reason: "
            f"{list_some(sorted(lost))}; see {log_dir}/*.log and decode again (stage 12)"
        )
    if both := {key for key in failed if texts.get(key)}:
        raise ValueError(f"{log_dir}: both decoded and failed: {list_some(sorted(both))}")
    (output_dir / "failed_utterances").unlink(missing_ok=True)
    if failed:
        write_table(output_dir / "failed_utterances", failed)
    return set(texts), failed


def merge_short(log_dir: Path, output_dir: Path) -> dict[str, str]:
    """Join the jobs' utterances that are too short for the encoder; return the reason by id."""
    short = _join(job_folders(log_dir), SHORT)
    (output_dir / SHORT).unlink(missing_ok=True)
    if short:
        write_table(output_dir / SHORT, short)
    return short


def merge_segments(log_dir: Path, output_dir: Path) -> None:
    """Join the jobs' `segments` of long utterances; raise ValueError for an id in two of them."""
    folders = [folder / SEGMENTS for folder in job_folders(log_dir)]
    tables = {name: _join(folders, name) for name in TABLES}
    words = [folder / CTM for folder in folders if (folder / CTM).is_file()]
    lines = (line for path in words for line in path.read_text("utf-8").splitlines(keepends=True))
    by_recording = sorted(lines, key=lambda line: line.split(" ", 1)[0])
    put_segments_dir(output_dir / SEGMENTS, tables, "".join(by_recording))


def merge_statistics_files(log_dir: Path, output_dir: Path) -> bool:
    """Join the statistics of the utterances in `output_dir/text`; return whether there are any.

    Raises ValueError if a file is malformed or an utterance has no statistics.
    """
    target = output_dir / "statistics.json"
    folders = job_folders(log_dir)
    files = [path for folder in folders if (path := folder / "statistics.json").is_file()]
    if not files:
        target.unlink(missing_ok=True)
        return False
    statistics: dict[str, DecodingStatistics] = {}
    for path in files:
        # A job with a higher number may be from an earlier run of ESPnet: lower numbers win.
        statistics = read_statistics(path) | statistics
    failed = read_results(output_dir / "failed_utterances")
    decoded = read_results(output_dir / "text").keys() - failed.keys()
    if lost := decoded - statistics.keys():
        raise ValueError(
            f"{log_dir}: no statistics of {len(lost)} utterances of {output_dir / 'text'}: "
            f"{list_some(sorted(lost))}; a job failed, decode again (stage 12)"
        )
    write_statistics(target, {key: statistics[key] for key in decoded})
    return True
