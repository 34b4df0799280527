"""What one decoding of a test set is worth: error rates, calls, seconds, parameters."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from espnet_medusa.report.measures.bootstrap import Estimate, ratio_of_sums
from espnet_medusa.report.measures.decodings import MODEL_MARK, Decoding, same_texts
from espnet_medusa.report.measures.parameters import Parameters, count_parameters
from espnet_medusa.scoring.box_table import parse_sum
from espnet_medusa.search.statistics import read_report

MS = 1000.0  # milliseconds a second
_SCORES = re.compile(r"^Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Latency:
    """Milliseconds an utterance: median and 90th percentile."""

    median: float
    p90: float


@dataclass(frozen=True)
class SameTexts:
    """Utterances with plain decoding's text, and utterances of both."""

    identical: int
    compared: int


def error_rate(result: Path) -> Estimate | None:
    """Percent of an sclite report, with its interval where the report holds the alignments.

    Raises:
        ValueError: The report has no `Sum/Avg` line.
    """
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
    """Eta of a scored set, with its interval; None before scoring.

    Args:
        statistics: ``statistics.json``, where scoring left eta of the set and of each utterance.
    """
    report = read_report(statistics)
    if "eta" not in report["set"]:
        return None
    if not all(row["decoder_calls"] for row in report["utterances"].values()):
        return Estimate(report["set"]["eta"])  # no calls, no ratio that tells the words
    # Scoring leaves ratios: their denominators are the words of both texts.
    rows = [row for row in report["utterances"].values() if row["eta"]]
    calls = np.array([2 * row["decoder_calls"] for row in rows])
    words = calls / np.array([row["eta"] for row in rows])
    estimate = ratio_of_sums(calls, words)
    return estimate and replace(estimate, value=report["set"]["eta"])


def calls_known(decoding: Decoding) -> bool:
    """Whether decoder calls were counted: ESPnet's own searches count no tokens, either."""
    counted = [item.decoder_calls or item.tokens for item in decoding.utterances.values()]
    return bool(counted) and all(counted)


def counts(decoding: Decoding, name: str) -> np.ndarray:
    """One of ``DecodingStatistics``' fields of all utterances, shape (n,); of lists the sums."""
    values = [getattr(item, name) for item in decoding.utterances.values()]
    return np.array([sum(value) if isinstance(value, list) else value for value in values])


def set_ratio(decoding: Decoding, above: str, below: str) -> Estimate | None:
    """One of ``DecodingStatistics``' counts over another, over the set; None without any."""
    numerators = counts(decoding, above)
    return ratio_of_sums(numerators, counts(decoding, below)) if numerators.any() else None


def per_utterance(decoding: Decoding, name: str, scale: float = 1.0) -> Estimate | None:
    """The mean of one of ``DecodingStatistics``' counts, times ``scale``; None without any."""
    values = counts(decoding, name)
    return ratio_of_sums(scale * values, np.ones(len(values))) if values.any() else None


def acceptance(decoding: Decoding) -> Estimate | None:
    """Percent of the drafted steps that stood; None where nothing was drafted."""
    return ratio_of_sums(100 * counts(decoding, "accepted"), counts(decoding, "drafted"))


def draft_milliseconds(decoding: Decoding) -> Estimate | None:
    """Drafting, ms an utterance; None where nothing was drafted."""
    if not counts(decoding, "drafted").any():
        return None
    return per_utterance(decoding, "draft_seconds", MS)


def latency(decoding: Decoding) -> Latency | None:
    """Encoder and search; None where the seconds of an utterance are not known."""
    seconds = counts(decoding, "total_seconds")
    if not seconds.all() or not len(seconds):
        return None
    return Latency(*map(float, np.percentile(MS * seconds, (50, 90))))


def texts_kept(decoding: Decoding, plain: Decoding | None) -> SameTexts | None:
    """Texts beside those of plain decoding; None where there is none to compare with."""
    same = SameTexts(*same_texts(decoding, plain)) if plain else None
    return same if same and same.compared else None


def common_utterances(decoding: Decoding, plain: Decoding | None) -> list[str]:
    """Ids that both decoded, in order."""
    return sorted(decoding.utterances.keys() & plain.utterances.keys()) if plain else []


def seconds_of_both(
    decoding: Decoding, plain: Decoding | None, name: str
) -> tuple[np.ndarray, np.ndarray] | None:
    """Seconds of this decoding and of plain decoding, of the utterances of both.

    Args:
        decoding, plain: Of the same test set; None: plain decoding was not run.
        name: Which seconds of ``DecodingStatistics``.

    Returns:
        Two arrays of shape (n,), n >= 1; None where the seconds of an utterance are not known.
    """
    both = common_utterances(decoding, plain)
    if not both:
        return None
    here = np.array([getattr(decoding.utterances[key], name) for key in both])
    there = np.array([getattr(plain.utterances[key], name) for key in both])
    return (here, there) if here.all() and there.all() else None


def seconds_over(decoding: Decoding, plain: Decoding | None, name: str) -> Estimate | None:
    """Plain decoding's seconds over this one's; arguments as ``seconds_of_both``'s."""
    seconds = seconds_of_both(decoding, plain, name)
    if seconds is None:
        return None
    here, there = seconds
    return Estimate(1.0) if decoding is plain else ratio_of_sums(there, here)


def model_parameters(decoding: Decoding, draft_model: str | None) -> Parameters | None:
    """Count in the checkpoint that the inference tag names; None where it is gone.

    Args:
        decoding: Whose model.
        draft_model: Checkpoint of a second model, from the folder that the experiment lies in.

    Raises:
        InputError: A checkpoint holds more than weights, or the draft model is missing.
    """
    _, mark, model = decoding.tag.partition(MODEL_MARK)
    candidates = [decoding.exp_dir / f"{model}{end}" for end in (".pth", ".safetensors")]
    found = [path for path in candidates if mark and path.is_file()]
    if not found:
        return None
    draft = decoding.exp_dir.parent / draft_model if draft_model else None
    return count_parameters(found[0], draft)
