"""Measure one decoding of a test set: error rates, calls, seconds, parameters."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.files.checkpoint import load_weights, open_safetensors
from espnet_medusa.report.decodings import MODEL_MARK, Decoding
from espnet_medusa.scoring.box_table import parse_sum
from espnet_medusa.search.statistics import read_report

MS = 1000.0  # milliseconds per second
RESAMPLES, INTERVAL = 1000, (2.5, 97.5)  # of the bootstrap; percentiles
FEWEST = 10  # utterances for an interval
_SCORES = re.compile(r"^Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)\s*$", re.MULTILINE)
HEADS = "decoder.heads."
TEACHER = "decoder.original_last_layer."  # used in training only
# One tensor where embeddings are tied; ESPnet's checkpoint averages store it twice.
TIED = ("decoder.llama.lm_head.weight", "decoder.llama.model.embed_tokens.weight")
FLOATING = {"F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3"}


@dataclass(frozen=True)
class Estimate:
    """A value, and its 95% bootstrap interval if there are enough utterances."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds per utterance: median and 90th percentile."""

    median: float
    p90: float

    def __str__(self) -> str:
        return f"{milliseconds(self.median)} (p90 {milliseconds(self.p90)})"


@dataclass(frozen=True)
class SameTexts:
    """Number of utterances with the baseline's text, and of those that both decoded."""

    identical: int
    compared: int

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


def estimate_cell(estimate: Estimate | None, digits: int = 2) -> str:
    """Return a value with its interval, as ``4.05 [3.31, 4.83]``."""
    if estimate is None:
        return "-"
    value = f"{estimate.value:.{digits}f}"
    if estimate.low is None:
        return value
    return f"{value} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def milliseconds(value: float) -> str:
    """Return milliseconds with at least three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def millions(count: float) -> str:
    """Return parameters in millions with at least three digits."""
    value = count / 1e6
    digits = next((digits for bound, digits in ((10, 2), (100, 1)) if value < bound), 0)
    return f"{value:.{digits}f}"


def ratio_of_sums(numerators: np.ndarray, denominators: np.ndarray) -> Estimate | None:
    """Return the ratio of the sums of values per utterance, (n,) each; None if the divisor is 0.

    The interval contains percentiles over resampled utterances (Bisani and Ney, ICASSP 2004), with
    a fixed seed.
    """
    total = float(np.sum(denominators))
    if not total:
        return None
    value = float(np.sum(numerators)) / total
    count = len(numerators)
    if count < FEWEST:
        return Estimate(value)
    random = np.random.default_rng(0)
    times = random.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    above, below = times @ np.asarray(numerators, float), times @ np.asarray(denominators, float)
    low, high = np.percentile(above[below > 0] / below[below > 0], INTERVAL)
    return Estimate(value, float(low), float(high))


def error_rate(result: Path) -> Estimate | None:
    """Return percent of an sclite report; raise ValueError if it has no `Sum/Avg` line."""
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
        return Estimate(report["set"]["eta"])  # without calls, eta does not give the words
    # The words of both texts are the denominators of eta.
    rows = [row for row in report["utterances"].values() if row["eta"]]
    calls = np.array([2 * row["decoder_calls"] for row in rows])
    words = calls / np.array([row["eta"] for row in rows])
    estimate = ratio_of_sums(calls, words)
    return estimate and replace(estimate, value=report["set"]["eta"])


def calls_known(decoding: Decoding) -> bool:
    """Return whether decoder calls were counted; ESPnet's own searches do not count them."""
    counted = [item.decoder_calls or item.tokens for item in decoding.utterances.values()]
    return bool(counted) and all(counted)


def counts(decoding: Decoding, name: str) -> np.ndarray:
    """Return a field of ``DecodingStatistics`` of all utterances, shape (n,); lists are summed."""
    values = [getattr(item, name) for item in decoding.utterances.values()]
    return np.array([sum(value) if isinstance(value, list) else value for value in values])


def set_ratio(decoding: Decoding, above: str, below: str) -> Estimate | None:
    """Return the ratio of two fields summed over the set; None if the first is 0 everywhere."""
    numerators = counts(decoding, above)
    return ratio_of_sums(numerators, counts(decoding, below)) if numerators.any() else None


def per_utterance(decoding: Decoding, name: str, scale: float = 1.0) -> Estimate | None:
    """Return the mean of a field times ``scale``; None if it is 0 everywhere."""
    values = counts(decoding, name)
    return ratio_of_sums(scale * values, np.ones(len(values))) if values.any() else None


def acceptance(decoding: Decoding) -> Estimate | None:
    """Return percent of the drafted steps that were accepted; None without drafts."""
    return ratio_of_sums(100 * counts(decoding, "accepted"), counts(decoding, "drafted"))


def draft_milliseconds(decoding: Decoding) -> Estimate | None:
    """Return milliseconds of drafting per utterance; None without drafts."""
    drafted = counts(decoding, "drafted").any()
    return per_utterance(decoding, "draft_seconds", MS) if drafted else None


def latency(decoding: Decoding) -> Latency | None:
    """Return the latency of encoder and search; None if an utterance's seconds are not known."""
    seconds = counts(decoding, "total_seconds")
    if not seconds.all() or not len(seconds):
        return None
    return Latency(*map(float, np.percentile(MS * seconds, (50, 90))))


def same_texts(decoding: Decoding, plain: Decoding | None) -> SameTexts | None:
    """Compare texts with the baseline's; None if both have no utterance in common."""
    both = decoding.texts.keys() & plain.texts.keys() if plain else ()
    same = sum(decoding.texts[key] == plain.texts[key] for key in both)
    return SameTexts(same, len(both)) if both else None


def common_utterances(decoding: Decoding, plain: Decoding | None) -> list[str]:
    """Return the ids that both decoded, sorted."""
    return sorted(decoding.utterances.keys() & plain.utterances.keys()) if plain else []


def speedup(decoding: Decoding, plain: Decoding | None, name: str) -> Estimate | None:
    """Return the baseline's seconds over this decoding's, over the utterances of both.

    None if an utterance's seconds are unknown, or there are no common utterances. ``name`` is a
    field of ``DecodingStatistics``, such as ``decoder_seconds``.
    """
    both = common_utterances(decoding, plain)
    here = np.array([getattr(decoding.utterances[key], name) for key in both])
    there = np.array([getattr(plain.utterances[key], name) for key in both])
    if not both or not here.all() or not there.all():
        return None
    return Estimate(1.0) if decoding is plain else ratio_of_sums(there, here)


def model_parameters(decoding: Decoding, draft_model: str | None) -> Parameters | None:
    """Count the parameters of the checkpoint in the inference tag; None if it is missing.

    The path of ``draft_model`` begins at the parent of the experiment folder. Errors are those of
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
    """Count floating-point values in checkpoints without running their code.

    Weights that share memory count once.

    Raises:
        InputError: A checkpoint is missing or contains more than weights.
    """
    sizes = _sizes(path)
    draft = sum(_sizes(draft_model).values()) if draft_model else 0
    sizes = {name: size for name, size in sizes.items() if not name.startswith(TEACHER)}
    heads = sum(size for name, size in sizes.items() if name.startswith(HEADS))
    return Parameters(sum(sizes.values()) + draft, heads, draft)


def _sizes(path: Path) -> dict[str, int]:
    """Return the number of values by name, of floating-point tensors."""
    if path.suffix == ".safetensors":
        return _safetensors_sizes(path)
    sizes, seen, weights = {}, set(), load_weights(path)
    if all(name in weights for name in TIED) and torch.equal(*(weights[name] for name in TIED)):
        del weights[TIED[0]]
    for name, tensor in weights.items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
        if tensor.is_floating_point() and place not in seen:
            seen.add(place)
            sizes[name] = tensor.numel()
    return sizes


def _safetensors_sizes(path: Path) -> dict[str, int]:
    if not path.is_file():
        raise InputError(f"{path}: no such checkpoint; train the model first, or mend the path")
    sizes = {}
    with open_safetensors(path) as file:
        for name in file.keys():  # noqa: SIM118 (no dictionary)
            entry = file.get_slice(name)
            if entry.get_dtype() in FLOATING:
                sizes[name] = math.prod(entry.get_shape())
    return sizes
