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
from espnet_medusa.recipes.report.incomplete import SCORING, IncompleteSets
from espnet_medusa.recipes.rtf import Timing, read_timings
from espnet_medusa.recipes.score import add_scored_eta
from espnet_medusa.recipes.scoring.box_table import parse_sum

MODEL_MARK = "_asr_model_"  # in an inference tag, before the name of the checkpoint
RATES = ("wer", "cer", "ter")
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


def read_experiments(
    exp_dirs: Sequence[Path], incomplete: IncompleteSets | None = None
) -> list[DecodedSet]:
    """Return all complete decodings, in each experiment ours first.

    ``incomplete`` has those to leave out, and receives others with a malformed file.
    """
    incomplete = IncompleteSets() if incomplete is None else incomplete
    found: list[DecodedSet] = []
    for path in exp_dirs:
        found += find_decodings(path, incomplete)
        with incomplete.noting(path, path):
            found += find_espnet_decodings(path, incomplete)
    found = [one for one in found if has_scores(one, incomplete)]
    counts = Counter((decoding.name, decoding.test_set) for decoding in found)
    return [replace(one, full_name=counts[one.name, one.test_set] > 1) for one in found]


def find_decodings(exp_dir: Path, incomplete: IncompleteSets | None = None) -> list[DecodedSet]:
    """Return all sets with ``statistics.json``; ``incomplete``: as in ``read_experiments``."""
    incomplete = IncompleteSets() if incomplete is None else incomplete
    decodings = []
    for path in decoded_files(exp_dir, "statistics.json"):
        with incomplete.noting(exp_dir, path.parent):
            texts, place = read_results(path.parent / "text"), tag_and_set(exp_dir, path)
            decodings.append(DecodedSet(exp_dir, *place, read_statistics(path), texts))
    return decodings


def has_scores(decoding: DecodedSet, incomplete: IncompleteSets) -> bool:
    """Return whether a set is complete, and its reports of scores, if any, can be read."""
    for rate in RATES:
        with incomplete.noting(decoding.exp_dir, decoding.folder, SCORING):
            if decoding.result(rate).is_file():
                parse_sum(decoding.result(rate))
    return decoding.folder not in incomplete


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


def find_espnet_decodings(
    exp_dir: Path, incomplete: IncompleteSets | None = None
) -> list[DecodedSet]:
    """Return all decoded test sets with texts but no ``statistics.json``.

    ``incomplete``: as in ``read_experiments``. Their statistics are ``total_seconds`` and
    ``audio_seconds``, from the logs; 0 if unknown. Raise ValueError if the config is malformed.
    """
    texts = decoded_files(exp_dir, "text")
    texts = [path for path in texts if not (path.parent / "statistics.json").is_file()]
    rate_hz = sample_rate_hz(exp_dir) if texts else None
    incomplete = IncompleteSets() if incomplete is None else incomplete
    decodings = []
    for path in texts:
        with incomplete.noting(exp_dir, path.parent):
            hypotheses, utterances = read_results(path), espnet_statistics(path, rate_hz)
            place = tag_and_set(exp_dir, path)
            decodings.append(DecodedSet(exp_dir, *place, utterances, hypotheses))
    return decodings


def espnet_statistics(text: Path, rate_hz: float | None) -> dict[str, DecodingStatistics]:
    """Return seconds by utterance from the logs of a set with the hypotheses ``text``."""
    timings = timings_by_id(text.parent / "logdir")
    utterances = {key: DecodingStatistics() for key in read_results(text)}
    for key in utterances.keys() & timings.keys():
        utterances[key].total_seconds = timings[key].seconds
        if rate_hz:
            utterances[key].audio_seconds = timings[key].samples / rate_hz
    return utterances


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


def complete_statistics(exp_dir: Path, incomplete: IncompleteSets) -> list[Path]:
    """Merge the statistics of ESPnet's jobs, add calls per word; return the written files.

    ``incomplete`` receives sets with a malformed file, or jobs that do not belong together.
    """
    written = []
    for folder in (path.parent for path in decoded_files(exp_dir, "text")):
        with incomplete.noting(exp_dir, folder):
            written += _merge_jobs(folder)
        if folder not in incomplete:
            with incomplete.noting(exp_dir, folder, SCORING):
                written += _add_eta(folder)
    return [*dict.fromkeys(written)]


def _merge_jobs(folder: Path) -> list[Path]:
    statistics, jobs = folder / "statistics.json", folder.glob("logdir/output.*/statistics.json")
    if not any(_is_newer(path, statistics) for path in jobs):
        if statistics.is_file():
            read_report(statistics)
        return []
    merge_statistics_files(folder / "logdir", folder)
    return [statistics]


def _add_eta(folder: Path) -> list[Path]:
    statistics, words = folder / "statistics.json", folder / "score_wer" / "hyp.trn"
    if not statistics.is_file() or not words.is_file():
        return []
    if "eta" in read_report(statistics)["set"] and not _is_newer(words, statistics):
        return []
    add_scored_eta(folder)
    return [statistics]


def _is_newer(path: Path, other: Path) -> bool:
    return not other.is_file() or path.stat().st_mtime_ns > other.stat().st_mtime_ns
