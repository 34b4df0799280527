"""Joins what the inference jobs of one test set wrote."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.kaldi.table import read_results, read_table, write_table
from espnet_medusa.longform.segments_dir import CTM, SEGMENTS, TABLES, put_segments_dir
from espnet_medusa.scoring.trn import list_some
from espnet_medusa.search.statistics import DecodingStatistics, read_statistics, write_statistics

RESULT_FILES = ("text", "token", "token_int", "score")


@dataclass(frozen=True)
class MergedOutput:
    """What became of a test set: ids with a result, and the reason of each failure by id."""

    decoded: tuple[str, ...]
    failed: Mapping[str, str]


def job_folders(log_dir: Path) -> list[Path]:
    """The folders `output.1`, `output.2`, ... in the order of their numbers.

    Raises:
        ValueError: There is none.
    """
    folders = {int(p.suffix[1:]): p for p in log_dir.glob("output.*") if p.suffix[1:].isdigit()}
    if not folders:
        raise ValueError(f"{log_dir}: no output.1; no inference job has run here")
    return [folders[number] for number in sorted(folders)]


def _join(files: Sequence[Path]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for path in files:
        values = read_results(path)
        twice = joined.keys() & values.keys()
        if twice:
            raise ValueError(f"{path}: ids of another job: {list_some(sorted(twice))}")
        joined.update(values)
    return joined


def merge_results(keys: Path, log_dir: Path, output_dir: Path) -> MergedOutput:
    """Join text, token, token_int, score and failed_utterances of all jobs, sorted by id.

    Args:
        keys: File whose first column holds the ids that should have been decoded.
        log_dir: Folder of `output.<job>`.
        output_dir: Where to write.

    Raises:
        ValueError: An id has neither a result nor a reason (its job broke off), or has both.
    """
    folders = job_folders(log_dir)
    failed = _join([folder / "failed_utterances" for folder in folders])
    for name in RESULT_FILES:
        merged = _join([folder / "1best_recog" / name for folder in folders])
        if name == "text" or merged:
            write_table(output_dir / name, merged)
        if name == "text":
            texts = merged
    lost = read_table(keys, require_value=False).keys() - texts.keys() - failed.keys()
    if lost:
        raise ValueError(
            f"{len(lost)} utterances of {keys} have neither a result nor a reason: "
            f"{list_some(sorted(lost))}; a job broke off, see "
            f"{log_dir}/*.log and decode again (stage 12)"
        )
    both = texts.keys() & failed.keys()
    if both:
        raise ValueError(f"{log_dir}: both decoded and failed: {list_some(sorted(both))}")
    (output_dir / "failed_utterances").unlink(missing_ok=True)
    if failed:
        write_table(output_dir / "failed_utterances", failed)
    return MergedOutput(tuple(sorted(texts)), failed)


def merge_segments(log_dir: Path, output_dir: Path) -> None:
    """Join the directories of long utterances' segments, where the jobs have written any.

    Args:
        log_dir: Folder of `output.<job>`.
        output_dir: Gets the directory `segments`.

    Raises:
        ValueError: A table is malformed, or an id is in two of them.
    """
    folders = [folder / SEGMENTS for folder in job_folders(log_dir)]
    tables = {name: _join([folder / name for folder in folders]) for name in TABLES}
    words = [folder / CTM for folder in folders if (folder / CTM).is_file()]
    lines = (line for path in words for line in path.read_text("utf-8").splitlines(keepends=True))
    by_recording = sorted(lines, key=lambda line: line.split(" ", 1)[0])
    put_segments_dir(output_dir / SEGMENTS, tables, "".join(by_recording))


def merge_statistics_files(log_dir: Path, output_dir: Path) -> bool:
    """Join the jobs' statistics.json, where the inference command writes any.

    Args:
        log_dir: Folder of `output.<job>`.
        output_dir: Holds the merged text; gets statistics.json, of its utterances.

    Returns:
        Whether there were any.

    Raises:
        ValueError: A file is malformed, or an utterance of the text is in none.
    """
    target = output_dir / "statistics.json"
    files = [folder / "statistics.json" for folder in job_folders(log_dir)]
    files = [path for path in files if path.is_file()]
    if not files:
        target.unlink(missing_ok=True)
        return False
    found: dict[str, DecodingStatistics] = {}
    for path in files:
        # ESPnet leaves the folders of an earlier run with more jobs: their numbers are higher
        # than those of the jobs that had the same utterances last.
        found = read_statistics(path) | found
    decoded = read_results(output_dir / "text")
    lost = decoded.keys() - found.keys()
    if lost:
        raise ValueError(
            f"{log_dir}: no statistics of {len(lost)} utterances of {output_dir / 'text'}: "
            f"{list_some(sorted(lost))}; a job broke off, decode again (stage 12)"
        )
    write_statistics(target, {key: found[key] for key in decoded})
    return True
