"""Statistics of sets that ESPnet's own recipe decoded and scored: it leaves those of the jobs."""

from pathlib import Path

from espnet_medusa.recipe.job_files import merge_statistics_files
from espnet_medusa.recipe.score import add_scored_eta
from espnet_medusa.report.measures.decodings import decoded_files
from espnet_medusa.search.statistics import read_report


def complete_statistics(exp_dir: Path) -> list[Path]:
    """Give every decoded set of an experiment what our own recipe gives it.

    Jobs' statistics are joined where that was not done since, and eta is added where the set was
    scored since.

    Returns:
        The ``statistics.json`` that were written.

    Raises:
        ValueError: A file is malformed, or some do not belong together.
    """
    folders = [path.parent for path in decoded_files(exp_dir, "text")]
    return [folder / "statistics.json" for folder in folders if _complete(folder)]


def _complete(folder: Path) -> bool:
    statistics, words = folder / "statistics.json", folder / "score_wer" / "hyp.trn"
    jobs = [*folder.glob("logdir/output.*/statistics.json")]
    unmerged = any(_is_newer(path, statistics) for path in jobs)
    if unmerged:
        merge_statistics_files(folder / "logdir", folder)
    if not statistics.is_file() or not words.is_file():
        return unmerged
    unscored = "eta" not in read_report(statistics)["set"] or _is_newer(words, statistics)
    if unscored:
        add_scored_eta(folder)
    return unmerged or unscored


def _is_newer(path: Path, other: Path) -> bool:
    """Whether a file was written after another one, which may be missing."""
    return not other.is_file() or path.stat().st_mtime_ns > other.stat().st_mtime_ns
