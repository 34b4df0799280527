"""Decoding statistics per utterance and per set: calls, tokens, acceptance, seconds."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from pathlib import Path

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.decoding.tree.draft_counts import count_draft


@dataclass
class DecodingStatistics:
    """Statistics of one utterance, or their sum over a set.

    In a batch each utterance counts the calls that it took part in, and its own nodes. Seconds are
    divided evenly among the utterances of the batch.
    """

    decoder_calls: int = 0
    nodes: int = 0  # tokens evaluated in these calls, including drafts
    tokens: int = 0  # after the prompt, with the end symbol (greedy search: only if decoded)
    drafted: list[int] = field(default_factory=list)  # drafts with >= 1, 2, ... steps
    accepted: list[int] = field(default_factory=list)  # drafts with >= 1, 2, ... accepted steps
    draft_calls: int = 0  # calls of the draft model; 0 without one
    draft_nodes: int = 0  # tokens that the draft model evaluated
    draft_seconds: float = 0.0  # drafting; a part of ``decoder_seconds``
    decoder_seconds: float = 0.0  # search without the encoder
    total_seconds: float = 0.0  # encoder, search and everything else
    audio_seconds: float = 0.0  # duration of the audio
    words: int = 0  # words of the hypothesis

    def count_drafts(self, drafted: int, accepted: int) -> None:
        """Count a draft with its numbers of drafted and of accepted steps."""
        count_draft(self.drafted, self.accepted, drafted, accepted)

    def __add__(self, other: "DecodingStatistics") -> "DecodingStatistics":
        return DecodingStatistics(*map(_add, vars(self).values(), vars(other).values()))

    def summary(self) -> dict:
        """Return the counts, and the ratios for tables."""
        return {
            **asdict(self),
            "tokens_per_call": _ratio(self.tokens, self.decoder_calls),
            "nodes_per_call": _ratio(self.nodes, self.decoder_calls),
            "acceptance_per_head": [
                _ratio(accepted, drafted)
                for accepted, drafted in zip(self.accepted, self.drafted, strict=True)
            ],
            "decoder_rtf": _ratio(self.decoder_seconds, self.audio_seconds),
            "rtf": _ratio(self.total_seconds, self.audio_seconds),
        }


def eta(decoder_calls: int, reference_words: int, hypothesis_words: int) -> float:
    """Return decoder calls per word: 2 nu / (N_ref + N_hyp) (multi-token Speech-LLaMA, eq. 13)."""
    return _ratio(2 * decoder_calls, reference_words + hypothesis_words)


def add_eta(
    path: Path, reference_words: Mapping[str, int], hypothesis_words: Mapping[str, int]
) -> None:
    """Add eta to each utterance and the set in ``statistics.json``; errors as ``read_report``."""
    report = read_report(path)
    for key, row in report["utterances"].items():
        row["eta"] = eta(row["decoder_calls"], reference_words[key], hypothesis_words[key])
    both = reference_words, hypothesis_words  # also of utterances that were not decoded
    words = (sum(texts[key] for key in report["utterances"]) for texts in both)
    report["set"]["eta"] = eta(report["set"]["decoder_calls"], *words)
    write_atomically(path, json.dumps(report, indent=1) + "\n")


def write_statistics(path: Path, utterances: Mapping[str, DecodingStatistics]) -> None:
    """Write ``statistics.json`` of a set: ``{"utterances": {id: summary}, "set": summary}``."""
    total = sum(utterances.values(), DecodingStatistics())
    report = {
        "utterances": {key: utterances[key].summary() for key in sorted(utterances)},
        "set": {"num_utterances": len(utterances), **total.summary()},
    }
    write_atomically(path, json.dumps(report, indent=1) + "\n")


def read_report(path: Path) -> dict:
    """Read what ``write_statistics`` wrote; raise InputError if it is malformed."""
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        for row in (report["set"], *report["utterances"].values()):
            row["decoder_calls"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is malformed ({error}); decode again (stage 12)") from error
    return report


def read_statistics(path: Path) -> dict[str, DecodingStatistics]:
    """Read statistics by utterance from ``statistics.json``; errors as ``read_report``."""
    names = {entry.name for entry in fields(DecodingStatistics)}
    return {
        key: DecodingStatistics(**{name: value for name, value in row.items() if name in names})
        for key, row in read_report(path)["utterances"].items()
    }


def _add(left, right):
    if not isinstance(left, list):
        return left + right
    return [first + second for first, second in zip_longest(left, right, fillvalue=0)]


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
