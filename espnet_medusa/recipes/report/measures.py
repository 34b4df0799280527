"""Measure one decoding of a test set: error rates, calls, seconds, parameters."""

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from espnet_medusa.data.files.checkpoint import load_weights
from espnet_medusa.data.kaldi.table import read_results
from espnet_medusa.decoding.search.statistics import read_report
from espnet_medusa.inference.convert.names import HEADS, MOMENTS, ORIGINAL_LAYER
from espnet_medusa.recipes.report.decodings import MODEL_MARK, DecodedSet
from espnet_medusa.recipes.scoring.box_table import parse_sum

MS = 1000.0  # milliseconds per second
RESAMPLES, INTERVAL = 1000, (2.5, 97.5)  # of the bootstrap; percentiles
FEWEST = 10  # minimum number of utterances for an interval
_SCORES = re.compile(r"^Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)\s*$", re.MULTILINE)
_NUMBER = re.compile(r"-?(?:inf|[\d.]+(?:e[+-]?\d+)?)")
UNCOUNTED = ORIGINAL_LAYER, MOMENTS  # used in training only, and a statistic
# Tied embeddings are one tensor; ESPnet's averaged checkpoints contain it twice.
TIED = ("decoder.llama.lm_head.weight", "decoder.llama.model.embed_tokens.weight")


@dataclass(frozen=True)
class Estimate:
    """A value, and its 95% bootstrap interval if there are enough utterances."""

    value: float
    low: float | None = None
    high: float | None = None

    def cell(self, digits: int = 2) -> str:
        """Return the value with its interval, as ``4.05 [3.31, 4.83]``."""
        value = f"{self.value:.{digits}f}"
        if self.low is None:
            return value
        return f"{value} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


@dataclass(frozen=True)
class Latency:
    """Milliseconds per utterance: median and 90th percentile."""

    median: float
    p90: float

    def __str__(self) -> str:
        return f"{milliseconds(self.median)} (p90 {milliseconds(self.p90)})"


@dataclass(frozen=True)
class SameTexts:
    identical: int  # utterances with the same text
    compared: int  # utterances that both decoded

    def __str__(self) -> str:
        return f"{self.identical}/{self.compared}"


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters: the total, and the heads' and draft model's parts of it."""

    total: int
    heads: int = 0
    draft: int = 0

    def __str__(self) -> str:
        parts = [("heads", self.heads), ("draft model", self.draft)]
        added = ", ".join(f"{name} {millions(count)}" for name, count in parts if count)
        return millions(self.total) + (f" ({added})" if added else "")


def milliseconds(value: float) -> str:
    """Return milliseconds as text, with one decimal below 100."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def millions(count: float) -> str:
    """Return parameters in millions with at least three digits."""
    value = count / 1e6
    digits = next((digits for bound, digits in ((10, 2), (100, 1)) if value < bound), 0)
    return f"{value:.{digits}f}"


def ratio_of_sums(numerators: np.ndarray, denominators: np.ndarray) -> Estimate | None:
    """Return the ratio of two sums over the utterances, (n,) each; None if the divisor is 0.

    The interval is the percentile bootstrap over utterances (Bisani and Ney, ICASSP 2004) with a
    fixed seed.
    """
    total = float(np.sum(denominators))
    if not total:
        return None
    value = float(np.sum(numerators)) / total
    count = len(numerators)
    if count < FEWEST:
        return Estimate(value)
    random = np.random.default_rng(0)
    values = np.stack([numerators, denominators], axis=1).astype(float)
    # One draw at a time: all of them have a thousand numbers per utterance.
    draws = (random.multinomial(count, np.full(count, 1 / count)) for _ in range(RESAMPLES))
    above, below = np.array([draw @ values for draw in draws]).T
    low, high = np.percentile(above[below > 0] / below[below > 0], INTERVAL)
    return Estimate(value, float(low), float(high))


def error_rate(result: Path) -> Estimate | None:
    """Return sclite's error rate in percent, None if unscored; ValueError without `Sum/Avg`."""
    if not result.is_file():
        return None
    summary = parse_sum(result)
    text = result.read_text(encoding="utf-8", errors="replace")
    counts = np.array([[int(number) for number in scores] for scores in _SCORES.findall(text)])
    if len(counts) != int(summary.sentences):
        return Estimate(float(summary.err))
    correct, substituted, deleted, inserted = counts.T
    errors, words = substituted + deleted + inserted, correct + substituted + deleted
    return ratio_of_sums(100 * errors, words)


def calls_per_word(statistics: Path) -> Estimate | None:
    """Return eta of a ``statistics.json``, with its interval; None before scoring."""
    report = read_report(statistics)
    if "eta" not in report["set"]:
        return None
    if not all(row["decoder_calls"] for row in report["utterances"].values()):
        return Estimate(report["set"]["eta"])  # with eta 0, the number of words is unknown
    # Eta is 2 calls / words, from which the words of an utterance follow; without words it is 0.
    rows = report["utterances"].values()
    calls = np.array([2 * row["decoder_calls"] for row in rows])
    etas = np.array([row["eta"] for row in rows])
    words = np.divide(calls, etas, out=np.zeros(len(calls)), where=etas > 0)
    estimate = ratio_of_sums(calls, words)
    return estimate and replace(estimate, value=report["set"]["eta"])


def calls_known(decoding: DecodedSet) -> bool:
    """Return whether decoder calls were counted; ESPnet's own searches do not count them.

    An utterance of silence may have neither calls nor tokens.
    """
    return any(item.decoder_calls or item.tokens for item in decoding.utterances.values())


def counts(decoding: DecodedSet, name: str) -> np.ndarray:
    """Return a field of ``DecodingStatistics`` of all utterances, shape (n,); lists are summed."""
    values = [getattr(item, name) for item in decoding.utterances.values()]
    return np.array([sum(value) if isinstance(value, list) else value for value in values])


def set_ratio(decoding: DecodedSet, numerator: str, denominator: str) -> Estimate | None:
    """Return the ratio of two fields summed over the set; None if the first is 0 everywhere."""
    values = counts(decoding, numerator)
    return ratio_of_sums(values, counts(decoding, denominator)) if values.any() else None


def per_utterance(decoding: DecodedSet, name: str, scale: float = 1.0) -> Estimate | None:
    """Return the mean of a field times ``scale``; None if it is 0 everywhere."""
    values = counts(decoding, name)
    return ratio_of_sums(scale * values, np.ones(len(values))) if values.any() else None


def draft_milliseconds(decoding: DecodedSet) -> Estimate | None:
    """Return milliseconds of drafting per utterance; None without drafts."""
    drafted = counts(decoding, "drafted").any()
    return per_utterance(decoding, "draft_seconds", MS) if drafted else None


def latency(decoding: DecodedSet) -> Latency | None:
    """Return the latency of encoder and search; None if an utterance's seconds are not known."""
    seconds = counts(decoding, "total_seconds")
    if not seconds.all() or not len(seconds):
        return None
    return Latency(*map(float, np.percentile(MS * seconds, (50, 90))))


def same_texts(decoding: DecodedSet, baseline: DecodedSet | None) -> SameTexts | None:
    """Compare texts with the baseline's; None without common utterances."""
    both = decoding.texts.keys() & baseline.texts.keys() if baseline else ()
    same = sum(decoding.texts[key] == baseline.texts[key] for key in both)
    return SameTexts(same, len(both)) if both else None


def same_nbest(decoding: DecodedSet, baseline: DecodedSet | None) -> SameTexts | None:
    """Compare n-best lists with the baseline's; None without common utterances."""
    if baseline is None:
        return None
    ours, theirs = (nbest_lists(item.folder / "logdir") for item in (decoding, baseline))
    pairs = [(ours[key], theirs[key]) for key in ours.keys() & theirs.keys()]
    same = sum(a[0] == b[0] and np.allclose(a[1], b[1], 1e-4, 1e-4) for a, b in pairs)
    return SameTexts(same, len(pairs)) if pairs else None


def nbest_lists(log_dir: Path) -> dict[str, tuple[list[str], list[float]]]:
    """Return token ids and scores, the best first, by utterance; empty without the jobs' files."""
    lists = defaultdict(lambda: ([], []))
    folders = [*log_dir.glob("output.*/[0-9]*best_recog")]
    for folder in sorted(folders, key=lambda path: int(path.name.removesuffix("best_recog"))):
        scores = read_results(folder / "score")  # such as tensor(-26.7191)
        for key, tokens in read_results(folder / "token_int").items():
            number = _NUMBER.search(scores.get(key, ""))
            lists[key][0].append(tokens)
            lists[key][1].append(float(number[0]) if number else np.nan)
    return lists


def common_values(
    decoding: DecodedSet, baseline: DecodedSet | None, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return a field of ``DecodingStatistics`` of both, (n,) each, for their common utterances."""
    both = sorted(decoding.utterances.keys() & baseline.utterances.keys()) if baseline else []
    pair = decoding, baseline
    return tuple(np.array([getattr(item.utterances[key], name) for key in both]) for item in pair)


def speedup(decoding: DecodedSet, baseline: DecodedSet | None, name: str) -> Estimate | None:
    """Return the baseline's seconds over this decoding's, for their common utterances.

    ``name`` is a field of ``DecodingStatistics``, such as ``decoder_seconds``. None: there are no
    common utterances, or the seconds of one are unknown (0 in one of both).
    """
    seconds, expected = common_values(decoding, baseline, name)
    if not seconds.any() or not np.array_equal(seconds > 0, expected > 0):
        return None
    return Estimate(1.0) if decoding is baseline else ratio_of_sums(expected, seconds)


def model_parameters(decoding: DecodedSet, draft_model: str | None) -> Parameters | None:
    """Count the parameters of the checkpoint that the inference tag names; None if it is missing.

    ``draft_model`` is a path relative to the parent of the experiment folder. Errors are those of
    ``count_parameters``.
    """
    _, mark, model = decoding.tag.partition(MODEL_MARK)
    files = (decoding.exp_dir / f"{model}{end}" for end in (".pth", ".safetensors"))
    checkpoint = next((path for path in files if mark and path.is_file()), None)
    if checkpoint is None:
        return None
    draft = decoding.exp_dir.parent / draft_model if draft_model else None
    return count_parameters(checkpoint, draft)


def count_parameters(path: Path, draft_model: Path | None = None) -> Parameters:
    """Count floating-point values in untrusted checkpoints; tied tensors count once, moments never.

    Raises InputError if a checkpoint is missing or contains more than weights.
    """
    sizes = _sizes(path)
    draft = sum(_sizes(draft_model).values()) if draft_model else 0
    sizes = {name: size for name, size in sizes.items() if not name.startswith(UNCOUNTED)}
    heads = sum(size for name, size in sizes.items() if name.startswith(HEADS))
    return Parameters(sum(sizes.values()) + draft, heads, draft)


def _sizes(path: Path) -> dict[str, int]:
    """Return the number of values of each floating-point tensor, by name."""
    sizes, seen, weights = {}, set(), load_weights(path, mapped=True)
    if all(name in weights for name in TIED) and torch.equal(*(weights[name] for name in TIED)):
        del weights[TIED[0]]
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), tensor.shape)
        if tensor.is_floating_point() and place not in seen:
            seen.add(place)
            sizes[name] = tensor.numel()
    return sizes
