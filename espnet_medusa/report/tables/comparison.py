"""Compares ways of decoding: calls, acceptance, speed and text beside plain decoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.report.measures.decodings import Decoding, find_plains, same_texts
from espnet_medusa.report.tables.markdown import markdown_table
from espnet_medusa.scoring.summary import parse_sum
from espnet_medusa.scoring.trn import read_trn
from espnet_medusa.search.statistics import DecodingStatistics, eta


@dataclass(frozen=True)
class ComparisonRow:
    """A line of the comparison; None where something was not measured.

    Attributes:
        wer: Word error rate, percent.
        eta: Decoder calls per word.
        acceptance_per_head: Share of each head's drafts that were written.
        decoder_speedup, speedup: Plain decoding's seconds over this one's, search only and all
            of it, over the utterances that both decoded.
        identical, compared: Utterances with plain decoding's text, and utterances of both.
    """

    configuration: str
    test_set: str
    wer: float | None
    eta: float | None
    tokens_per_call: float
    decoder_calls: int
    acceptance_per_head: list[float]
    decoder_rtf: float
    rtf: float
    decoder_speedup: float | None
    speedup: float | None
    identical: int | None
    compared: int | None


def _error_rate(decoding: Decoding) -> tuple[float | None, float | None]:
    """WER in percent and eta, both None before scoring."""
    folder = decoding.folder / "score_wer"
    if not (folder / "result.txt").is_file():
        return None, None
    words = [
        sum(len(line.tokens) for line in read_trn(folder / name)) for name in ("ref.trn", "hyp.trn")
    ]
    wer = float(parse_sum(folder / "result.txt").err)
    return wer, eta(decoding.total.decoder_calls, *words)


def compare(decoding: Decoding, plain: Decoding | None) -> ComparisonRow:
    """Put one way of decoding beside plain decoding of the same test set."""
    summary = decoding.total.summary()
    wer, calls_per_word = _error_rate(decoding)
    decoder_speedup = speedup = identical = compared = None
    if plain is not None:
        both = decoding.utterances.keys() & plain.utterances.keys()
        here = sum((decoding.utterances[key] for key in both), DecodingStatistics())
        there = sum((plain.utterances[key] for key in both), DecodingStatistics())
        if here.decoder_seconds and here.total_seconds:
            decoder_speedup = there.decoder_seconds / here.decoder_seconds
            speedup = there.total_seconds / here.total_seconds
        identical, compared = same_texts(decoding, plain)
    return ComparisonRow(
        configuration=decoding.name,
        test_set=decoding.test_set,
        wer=wer,
        eta=calls_per_word,
        tokens_per_call=summary["tokens_per_call"],
        decoder_calls=summary["decoder_calls"],
        acceptance_per_head=summary["acceptance_per_head"],
        decoder_rtf=summary["decoder_rtf"],
        rtf=summary["rtf"],
        decoder_speedup=decoder_speedup,
        speedup=speedup,
        identical=identical,
        compared=compared,
    )


def compare_all(decodings: Sequence[Decoding], plain: Path | None) -> list[ComparisonRow]:
    """One row for each decoding, test set by test set.

    Raises:
        ValueError: Plain decoding was asked for, and no test set has it.
    """
    plains = find_plains(decodings, plain)
    ordered = sorted(decodings, key=lambda item: item.test_set)
    return [compare(item, plains[item.test_set]) for item in ordered]


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def comparison_markdown(rows: Sequence[ComparisonRow]) -> str:
    """The comparison as a section of RESULTS.md; empty without rows."""
    if not rows:
        return ""
    titles = (
        *("dataset", "configuration", "WER", "eta", "tokens/call", "decoder calls"),
        *("accepted per head [%]", "decoder RTF", "RTF", "decoder speedup", "speedup"),
        "same text as plain",
    )
    lines = []
    for row in rows:
        heads = " ".join(f"{100 * share:.0f}" for share in row.acceptance_per_head) or "-"
        same = "-" if row.compared is None else f"{row.identical}/{row.compared}"
        cells = (
            *(row.test_set, row.configuration, _number(row.wer, 1), _number(row.eta)),
            *(_number(row.tokens_per_call), str(row.decoder_calls), heads),
            *(_number(row.decoder_rtf, 4), _number(row.rtf, 4)),
            *(_number(row.decoder_speedup), _number(row.speedup), same),
        )
        lines.append(cells)
    notes = (
        "eta: decoder calls per word, 2 calls / (reference words + hypothesis words). "
        "RTF: seconds / audio seconds. Speedup: plain decoding's seconds over these."
    )
    return f"## Decoding\n\n{markdown_table(titles, lines)}\n{notes}\n"
