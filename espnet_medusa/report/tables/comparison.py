"""Compares ways of decoding: calls, acceptance, speed and text beside plain decoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa.report.measures.decoding_measures import calls_known, seconds_of_both, texts_kept
from espnet_medusa.report.measures.decodings import Decoding, find_plains
from espnet_medusa.report.tables.markdown import markdown_table
from espnet_medusa.scoring.box_table import parse_sum
from espnet_medusa.scoring.trn import read_trn
from espnet_medusa.search.statistics import eta


@dataclass(frozen=True)
class ComparisonRow:
    """A line of the comparison; None where something was not measured.

    Attributes:
        wer: Word error rate, percent.
        eta: Decoder calls per word.
        tokens_per_call, decoder_calls: None, as eta, for ESPnet's own searches.
        acceptance_per_head: Share of each head's drafts that were written.
        decoder_rtf, rtf: Seconds over those of the audio, search only and all of it.
        decoder_speedup, speedup: Plain decoding's seconds over this one's, search only and all
            of it, over the utterances that both decoded.
        identical, compared: Utterances with plain decoding's text, and utterances of both.
    """

    configuration: str
    test_set: str
    wer: float | None
    eta: float | None
    tokens_per_call: float | None
    decoder_calls: int | None
    acceptance_per_head: list[float]
    decoder_rtf: float | None
    rtf: float | None
    decoder_speedup: float | None
    speedup: float | None
    identical: int | None
    compared: int | None


def _error_rate(folder: Path) -> float | None:
    """WER in percent, None before scoring."""
    result = folder / "score_wer" / "result.txt"
    return float(parse_sum(result).err) if result.is_file() else None


def _calls_per_word(decoding: Decoding) -> float | None:
    """Eta, None before scoring."""
    texts = [decoding.folder / "score_wer" / name for name in ("ref.trn", "hyp.trn")]
    if not all(path.is_file() for path in texts):
        return None
    words = [sum(len(line.tokens) for line in read_trn(path)) for path in texts]
    return eta(decoding.total.decoder_calls, *words)


def _speedup(decoding: Decoding, plain: Decoding | None, name: str) -> float | None:
    seconds = seconds_of_both(decoding, plain, name)
    if seconds is None:
        return None
    here, there = seconds
    return float(there.sum() / here.sum())


def compare(decoding: Decoding, plain: Decoding | None) -> ComparisonRow:
    """Put one way of decoding beside plain decoding of the same test set."""
    total, counted = decoding.total, calls_known(decoding)
    summary = total.summary()
    same = texts_kept(decoding, plain)
    return ComparisonRow(
        configuration=decoding.name,
        test_set=decoding.test_set,
        wer=_error_rate(decoding.folder),
        eta=_calls_per_word(decoding) if counted else None,
        tokens_per_call=summary["tokens_per_call"] if counted else None,
        decoder_calls=total.decoder_calls if counted else None,
        acceptance_per_head=summary["acceptance_per_head"],
        decoder_rtf=summary["decoder_rtf"] or None,
        rtf=summary["rtf"] or None,
        decoder_speedup=_speedup(decoding, plain, "decoder_seconds"),
        speedup=_speedup(decoding, plain, "total_seconds"),
        identical=same and same.identical,
        compared=same and same.compared,
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
            *(_number(row.tokens_per_call), _number(row.decoder_calls, 0), heads),
            *(_number(row.decoder_rtf, 4), _number(row.rtf, 4)),
            *(_number(row.decoder_speedup), _number(row.speedup), same),
        )
        lines.append(cells)
    notes = (
        "eta: decoder calls per word, 2 calls / (reference words + hypothesis words). "
        "RTF: seconds / audio seconds. Speedup: plain decoding's seconds over these."
    )
    return f"## Decoding\n\n{markdown_table(titles, lines)}\n{notes}\n"
