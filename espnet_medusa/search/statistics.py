"""What decoding cost and gained, per utterance and per set (DESIGN: eta, tokens per call, RTF)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from espnet_medusa.errors import InputError
from espnet_medusa.files.atomic import write_atomically


@dataclass
class DecodingStatistics:
    """Counts of one utterance; sums of them describe a set.

    In a batch each utterance counts the calls and nodes that it took part in, as if it were alone;
    the seconds are shared out evenly among those present.

    Attributes:
        decoder_calls: Times the decoder ran for it.
        nodes: Tokens it evaluated in them, drafts included.
        tokens: Tokens of the hypothesis, without prompt, with the end symbol if it was decoded.
        drafted: Per step ahead (head), how often it was drafted.
        accepted: Per step ahead, how often the search took it without a further call.
        draft_calls: Times a draft model ran for it; 0 where heads draft.
        draft_nodes: Tokens that the draft model evaluated in them.
        draft_seconds: Drafting, by whatever drafts; a part of the next.
        decoder_seconds: Search without the encoder.
        total_seconds: All of it.
        audio_seconds: Length of the audio.
        words: Words of the hypothesis.
    """

    decoder_calls: int = 0
    nodes: int = 0
    tokens: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    draft_calls: int = 0
    draft_nodes: int = 0
    draft_seconds: float = 0.0
    decoder_seconds: float = 0.0
    total_seconds: float = 0.0
    audio_seconds: float = 0.0
    words: int = 0

    def count_drafts(self, drafted: int, accepted: int) -> None:
        """Count a draft of so many steps, of which so many were taken."""
        missing = [0] * (drafted - len(self.drafted))
        self.drafted, self.accepted = self.drafted + missing, self.accepted + missing
        for step in range(drafted):
            self.drafted[step] += 1
            self.accepted[step] += step < accepted

    def __add__(self, other: "DecodingStatistics") -> "DecodingStatistics":
        return DecodingStatistics(
            **{
                name.name: _add(getattr(self, name.name), getattr(other, name.name))
                for name in fields(self)
            }
        )

    def summary(self) -> dict:
        """The counts and the ratios that tables show."""
        return {
            **asdict(self),
            "tokens_per_call": _ratio(self.tokens, self.decoder_calls),
            "nodes_per_call": _ratio(self.nodes, self.decoder_calls),
            "acceptance_per_head": [
                _ratio(kept, tried) for kept, tried in zip(self.accepted, self.drafted, strict=True)
            ],
            "decoder_rtf": _ratio(self.decoder_seconds, self.audio_seconds),
            "rtf": _ratio(self.total_seconds, self.audio_seconds),
        }


def eta(decoder_calls: int, reference_words: int, hypothesis_words: int) -> float:
    """Decoder calls per word: 2 nu / (N_ref + N_hyp) (multi-token Speech-LLaMA, eq. 13).

    Decoding knows no reference: scoring computes it, for the comparison in RESULTS.md.
    """
    return _ratio(2 * decoder_calls, reference_words + hypothesis_words)


def add_eta(
    path: Path, reference_words: Mapping[str, int], hypothesis_words: Mapping[str, int]
) -> None:
    """Add eta to each utterance and to the set in ``statistics.json``, once texts are scored.

    Args:
        path: The file.
        reference_words: Words by utterance, of the whole set.
        hypothesis_words: The same of the hypotheses.

    Raises:
        InputError: The file is malformed.
    """
    report = read_report(path)
    for key, row in report["utterances"].items():
        row["eta"] = eta(row["decoder_calls"], reference_words[key], hypothesis_words[key])
    words = sum(reference_words.values()), sum(hypothesis_words.values())
    report["set"]["eta"] = eta(report["set"]["decoder_calls"], *words)
    write_atomically(path, json.dumps(report, indent=1) + "\n")


def set_report(utterances: Mapping[str, DecodingStatistics]) -> dict:
    """``{"utterances": {id: summary}, "set": summary}``."""
    total = sum(utterances.values(), DecodingStatistics())
    return {
        "utterances": {key: utterances[key].summary() for key in sorted(utterances)},
        "set": {"num_utterances": len(utterances), **total.summary()},
    }


def write_statistics(path: Path, utterances: Mapping[str, DecodingStatistics]) -> None:
    """Write ``statistics.json`` of a set."""
    write_atomically(path, json.dumps(set_report(utterances), indent=1) + "\n")


def read_report(path: Path) -> dict:
    """Read ``statistics.json``: what ``set_report`` made of a set, with eta where it was scored.

    Raises:
        InputError: The file is malformed.
    """
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        for row in (report["set"], *report["utterances"].values()):
            row["decoder_calls"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is malformed ({error}); decode again (stage 12)") from error
    return report


def read_statistics(path: Path) -> dict[str, DecodingStatistics]:
    """Read back what ``write_statistics`` wrote.

    Raises:
        InputError: The file is malformed.
    """
    names = {entry.name for entry in fields(DecodingStatistics)}
    return {
        key: DecodingStatistics(**{name: value for name, value in row.items() if name in names})
        for key, row in read_report(path)["utterances"].items()
    }


def _add(left, right):
    if not isinstance(left, list):
        return left + right
    size = max(len(left), len(right))
    padded = [[*counts, *[0] * (size - len(counts))] for counts in (left, right)]
    return [first + second for first, second in zip(*padded, strict=True)]


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
