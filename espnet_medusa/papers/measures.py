"""What one decoding of a test set is worth: error rates, calls, seconds, parameters."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from espnet_medusa.papers.parameters import Parameters, count_parameters
from espnet_medusa.papers.spread import Estimate, ratio_of_sums
from espnet_medusa.scoring.comparison import MODEL_MARK, Decoding
from espnet_medusa.scoring.tables import parse_sum

_SCORES = re.compile(r"^Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)\s*$", re.MULTILINE)


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
    report = json.loads(statistics.read_text(encoding="utf-8"))
    if "eta" not in report["set"]:
        return None
    # Scoring leaves ratios: their denominators are the words of both texts.
    rows = [row for row in report["utterances"].values() if row["eta"]]
    calls = np.array([2 * row["decoder_calls"] for row in rows])
    words = calls / np.array([row["eta"] for row in rows])
    estimate = ratio_of_sums(calls, words)
    return estimate and replace(estimate, value=report["set"]["eta"])


def set_ratio(decoding: Decoding, above: str, below: str) -> Estimate | None:
    """One of ``DecodingStatistics``' counts over another, over the set."""
    counts = decoding.utterances.values()
    return ratio_of_sums(
        np.array([getattr(item, above) for item in counts]),
        np.array([getattr(item, below) for item in counts]),
    )


def common_utterances(decoding: Decoding, plain: Decoding | None) -> list[str]:
    """Ids that both decoded, in order."""
    return sorted(decoding.utterances.keys() & plain.utterances.keys()) if plain else []


def seconds_over(decoding: Decoding, plain: Decoding | None, name: str) -> Estimate | None:
    """Plain decoding's seconds over this one's, over the utterances of both.

    Args:
        decoding, plain: Of the same test set; None: plain decoding was not run.
        name: Which seconds of ``DecodingStatistics``.
    """
    both = common_utterances(decoding, plain)
    if not both:
        return None
    here = np.array([getattr(decoding.utterances[key], name) for key in both])
    there = np.array([getattr(plain.utterances[key], name) for key in both])
    return Estimate(1.0) if decoding is plain else ratio_of_sums(there, here)


def model_parameters(decoding: Decoding, draft_model: str | None) -> Parameters | None:
    """Count in the checkpoint that the inference tag names; None where it is gone.

    Raises:
        InputError: A checkpoint holds more than weights, or the draft model is missing.
    """
    _, mark, model = decoding.tag.partition(MODEL_MARK)
    candidates = [decoding.exp_dir / f"{model}{end}" for end in (".pth", ".safetensors")]
    found = [path for path in candidates if mark and path.is_file()]
    if not found:
        return None
    return count_parameters(found[0], Path(draft_model) if draft_model else None)
