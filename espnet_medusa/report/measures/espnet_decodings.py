"""Decodings by ESPnet's own inference command: texts, and the seconds that its logs tell."""

from pathlib import Path

from espnet_medusa.kaldi.table import read_results
from espnet_medusa.options import read_config
from espnet_medusa.recipe.job_files import job_folders
from espnet_medusa.recipe.rtf import Timing, parse_rate, read_timings
from espnet_medusa.report.measures.decodings import Decoding, decoded_files, tag_and_set
from espnet_medusa.search.statistics import DecodingStatistics

DEFAULT_RATE = "16k"  # of ESPnet's frontends


def find_espnet_decodings(exp_dir: Path) -> list[Decoding]:
    """All decoded test sets of an experiment that have texts but no ``statistics.json``.

    Of their statistics only ``total_seconds`` and ``audio_seconds`` are known; 0 where the logs
    do not tell them.

    Raises:
        ValueError: A table or the experiment's configuration is malformed.
    """
    texts = decoded_files(exp_dir, "text")
    texts = [path for path in texts if not (path.parent / "statistics.json").is_file()]
    rate_hz = sample_rate_hz(exp_dir) if texts else None
    found = []
    for path in texts:
        hypotheses, timings = read_results(path), timings_by_id(path.parent / "logdir")
        utterances = {key: _statistics(timings.get(key), rate_hz) for key in hypotheses}
        found.append(Decoding(exp_dir, *tag_and_set(exp_dir, path), utterances, hypotheses))
    return found


def _statistics(timing: Timing | None, rate_hz: float | None) -> DecodingStatistics:
    if timing is None:
        return DecodingStatistics()
    audio_seconds = timing.samples / rate_hz if rate_hz else 0.0
    return DecodingStatistics(total_seconds=timing.seconds, audio_seconds=audio_seconds)


def sample_rate_hz(exp_dir: Path) -> float | None:
    """Of the audio that the experiment's model takes; None without its configuration.

    Raises:
        ValueError: The configuration is malformed.
    """
    config = exp_dir / "config.yaml"
    if not config.is_file():
        return None
    frontend = read_config(config, "train again (stage 11)").get("frontend_conf") or {}
    try:
        return parse_rate(str(frontend.get("fs", DEFAULT_RATE)))
    except ValueError as error:
        raise ValueError(f"{config}: frontend_conf: fs: {error}") from None


def timings_by_id(log_dir: Path) -> dict[str, Timing]:
    """Samples and seconds, encoder and search, of the utterances that have a hypothesis.

    Args:
        log_dir: Holds ``asr_inference.<job>.log`` and ``output.<job>``. A job's log names no ids,
            so its results have to be as many as the utterances it logged, in the same order.
    """
    found: dict[str, Timing] = {}
    for folder in job_folders(log_dir) if any(log_dir.glob("output.*")) else []:
        log = log_dir / f"asr_inference{folder.suffix}.log"
        timings = read_timings(log) if log.is_file() else []
        keys = read_results(folder / "1best_recog" / "text")
        if len(keys) == len(timings):
            told = zip(keys, timings, strict=True)
            # Higher numbers may be jobs of an earlier run.
            found = {key: timing for key, timing in told if timing.seconds} | found
    return found
