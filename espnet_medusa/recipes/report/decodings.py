"""Find the decodings of experiments, by our command or ESPnet's, and the baseline among them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from espnet_medusa.data.kaldi.table import read_results
from espnet_medusa.data.options import parse_rate, read_config
from espnet_medusa.decoding.search.statistics import (
    DecodingStatistics,
    read_report,
    read_statistics,
)
from espnet_medusa.recipes.job_files import job_folders, merge_statistics_files
from espnet_medusa.recipes.rtf import Timing, read_timings
from espnet_medusa.recipes.score import add_scored_eta

MODEL_MARK = "_asr_model_"  # in an inference tag, before the name of the checkpoint
DEFAULT_RATE = "16k"  # of ESPnet's frontends


@dataclass(frozen=True)
class DecodedSet:
    exp_dir: Path  # experiment folder
    tag: str  # inference tag, a folder in ``exp_dir``
    test_set: str  # name of the test set, a folder in ``exp_dir / tag``
    utterances: dict[str, DecodingStatistics]  # statistics by id
    texts: dict[str, str]  # hypotheses by id
    full_name: bool = False  # whether other decodings have the same short name

    @property
    def folder(self) -> Path:
        return self.exp_dir / self.tag / self.test_set

    def result(self, rate: str) -> Path:
        """Return the path of sclite's report of an error rate, ``wer`` or ``cer``."""
        return self.folder / f"score_{rate}" / "result.txt"

    @property
    def name(self) -> str:
        """Short name: experiment and decoding configuration; or with parent and checkpoint."""
        if self.full_name:
            return f"{self.exp_dir.parent.name}/{self.exp_dir.name} {self.tag}"
        experiment = self.exp_dir.name.removeprefix("asr_")
        return f"{experiment} {self.tag.split(MODEL_MARK)[0]}"

    @property
    def total(self) -> DecodingStatistics:
        return sum(self.utterances.values(), DecodingStatistics())


def read_experiments(exp_dirs: Sequence[Path]) -> list[DecodedSet]:
    """Return all decodings, in each experiment ours first; ValueError if a file is malformed."""
    found = ((find_decodings(path), find_espnet_decodings(path)) for path in exp_dirs)
    found = [decoding for ours, espnets in found for decoding in ours + espnets]
    counts = Counter((decoding.name, decoding.test_set) for decoding in found)
    return [replace(one, full_name=counts[one.name, one.test_set] > 1) for one in found]


def find_decodings(exp_dir: Path) -> list[DecodedSet]:
    """Return all sets with ``statistics.json``; raise ValueError if one is malformed."""
    decodings = []
    for path in decoded_files(exp_dir, "statistics.json"):
        texts, place = read_results(path.parent / "text"), tag_and_set(exp_dir, path)
        decodings.append(DecodedSet(exp_dir, *place, read_statistics(path), texts))
    return decodings


def decoded_files(exp_dir: Path, name: str) -> list[Path]:
    """Return the files with this name in all decoded test sets of an experiment."""
    # --eval_valid_set decodes org/<set>. Hidden folders, `1best_recog`, and data directories, if
    # the folder is a recipe's, are no decoded sets.
    found = (exp_dir.glob(f"[!.]*/{folder}[!.]*/{name}") for folder in ("", "org/"))
    files = (path for path in chain(*found) if not path.parent.match("*best_recog"))
    return sorted(path for path in files if not (path.parent / "wav.scp").exists())


def tag_and_set(exp_dir: Path, path: Path) -> tuple[str, str]:
    """Return inference tag and test set of one of ``decoded_files``."""
    tag, *test_set = path.parent.relative_to(exp_dir).parts
    return tag, "/".join(test_set)


def is_configuration(decoding: DecodedSet, wanted: Path) -> bool:
    """Return whether a decoding is ``EXP_DIR/TAG``, with or without the model part of the tag."""
    tag = decoding.tag
    return decoding.exp_dir == wanted.parent and wanted.name in (tag, tag.split(MODEL_MARK)[0])


def find_baselines(
    decodings: Sequence[DecodedSet], wanted: Path | None
) -> dict[str, DecodedSet | None]:
    """Return the decoding ``wanted`` of each test set, or None; ValueError if all sets lack it."""
    baselines: dict[str, DecodedSet | None] = {}
    for test_set in sorted({item.test_set for item in decodings}):
        same = [item for item in decodings if wanted and item.test_set == test_set]
        exact = [item for item in same if is_configuration(item, wanted)]
        # A tag with more options, from the command line, is accepted if it is the only one.
        others = (item for item in same if item.exp_dir == wanted.parent)
        longer = [item for item in others if item.tag.startswith(f"{wanted.name}_")]
        found = exact or (longer if len(longer) == 1 else [])
        baselines[test_set] = found[0] if found else None
    if wanted and baselines and not any(baselines.values()):
        known = ", ".join(sorted({f"{item.exp_dir / item.tag}" for item in decodings}))
        sets = ", ".join(baselines)
        raise ValueError(f"--baseline {wanted}: no such decoding of {sets}; there is {known}")
    return baselines


def find_espnet_decodings(exp_dir: Path) -> list[DecodedSet]:
    """Return all decoded test sets with texts but no ``statistics.json``.

    Their statistics are ``total_seconds`` and ``audio_seconds``, from the logs; 0 if unknown.
    """
    texts = decoded_files(exp_dir, "text")
    texts = [path for path in texts if not (path.parent / "statistics.json").is_file()]
    rate_hz = sample_rate_hz(exp_dir) if texts else None
    decodings = []
    for path in texts:
        hypotheses, timings = read_results(path), timings_by_id(path.parent / "logdir")
        utterances = {key: DecodingStatistics() for key in hypotheses}
        for key in hypotheses.keys() & timings.keys():
            utterances[key].total_seconds = timings[key].seconds
            if rate_hz:
                utterances[key].audio_seconds = timings[key].samples / rate_hz
        decodings.append(DecodedSet(exp_dir, *tag_and_set(exp_dir, path), utterances, hypotheses))
    return decodings


def sample_rate_hz(exp_dir: Path) -> float | None:
    """Return the frontend's rate, or None; raise ValueError if the config is malformed."""
    config = exp_dir / "config.yaml"
    if not config.is_file():
        return None
    frontend = read_config(config, "train again (stage 11)").get("frontend_conf") or {}
    try:
        return parse_rate(str(frontend.get("fs", DEFAULT_RATE)))
    except ValueError as error:
        raise ValueError(f"{config}: frontend_conf: fs: {error}") from None


def timings_by_id(log_dir: Path) -> dict[str, Timing]:
    """Return samples and seconds (encoder and search) of decoded utterances.

    Logs have no ids. A job is skipped if the numbers of utterances in its log and results differ.
    """
    timings: dict[str, Timing] = {}
    for folder in job_folders(log_dir) if any(log_dir.glob("output.*")) else []:
        # ESPnet names the log after its command: asr_inference, s2t_inference.
        logs = [*log_dir.glob(f"*_inference{folder.suffix}.log")]
        logged = read_timings(logs[0]) if logs else []
        keys = read_results(folder / "1best_recog" / "text")
        if len(keys) == len(logged):
            pairs = zip(keys, logged, strict=True)
            # Jobs with higher numbers may be from an earlier run.
            timings = {key: timing for key, timing in pairs if timing.seconds} | timings
    return timings


def complete_statistics(exp_dir: Path) -> list[Path]:
    """Merge the statistics of ESPnet's jobs, add calls per word; return the written files.

    Raises ValueError if a file is malformed or jobs do not belong together.
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
    return not other.is_file() or path.stat().st_mtime_ns > other.stat().st_mtime_ns
