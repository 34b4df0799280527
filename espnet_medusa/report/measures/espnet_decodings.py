"""Decodings by ESPnet's own inference command: texts, and the seconds that its logs tell."""

from pathlib import Path

from espnet_medusa.kaldi.table import read_results
from espnet_medusa.recipe.merge import job_folders
from espnet_medusa.recipe.rtf import read_timings
from espnet_medusa.report.measures.decodings import Decoding, decoded_files, tag_and_set
from espnet_medusa.search.statistics import DecodingStatistics


def find_espnet_decodings(exp_dir: Path) -> list[Decoding]:
    """All decoded test sets of an experiment that have texts but no ``statistics.json``.

    Of their statistics only ``total_seconds`` is known; 0 where the logs do not tell it.
    """
    found = []
    for path in decoded_files(exp_dir, "text"):
        if not (path.parent / "statistics.json").is_file():
            texts, seconds = read_results(path), read_seconds(path.parent / "logdir")
            utterances = {
                key: DecodingStatistics(total_seconds=seconds.get(key, 0.0)) for key in texts
            }
            found.append(Decoding(exp_dir, *tag_and_set(exp_dir, path), utterances, texts))
    return found


def read_seconds(log_dir: Path) -> dict[str, float]:
    """Seconds by id, encoder and search.

    Args:
        log_dir: Holds ``asr_inference.<job>.log`` and ``output.<job>``. A job's log names no ids,
            so its results have to be as many as the utterances it logged, in the same order.
    """
    seconds: dict[str, float] = {}
    for folder in job_folders(log_dir) if any(log_dir.glob("output.*")) else []:
        log = log_dir / f"asr_inference{folder.suffix}.log"
        timings = read_timings(log) if log.is_file() else []
        keys = read_results(folder / "1best_recog" / "text")
        if len(keys) == len(timings):
            told = zip(keys, timings, strict=True)
            seconds |= {key: timing.seconds for key, timing in told if timing.seconds}
    return seconds
