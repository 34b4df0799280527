"""What a table can show of a row: title of the column, its cell, and what it means."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from espnet_medusa.report.measures.bootstrap import Estimate
from espnet_medusa.report.measures.decoding_measures import Latency, SameTexts
from espnet_medusa.report.measures.parameters import Parameters
from espnet_medusa.report.measures.table_rows import Row

ERROR_RATES = "WER and CER: sclite's."
SPEEDUP = (
    "{}: plain decoding's seconds ({}) over this one's, the utterances of both; valid where both "
    "ran on the same machine with the same dtype and batch size."
)


def estimate_cell(estimate: Estimate | None, digits: int = 2) -> str:
    """A value with its interval, as ``4.05 [3.31, 4.83]``."""
    if estimate is None:
        return "-"
    value = f"{estimate.value:.{digits}f}"
    if estimate.low is None:
        return value
    return f"{value} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def count_cell(count: int | None) -> str:
    """A whole number."""
    return "-" if count is None else str(count)


def milliseconds(value: float) -> str:
    """Milliseconds, three digits where there are as many."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def latency_cell(latency: Latency | None) -> str:
    """Median and, in brackets, the 90th percentile."""
    if latency is None:
        return "-"
    return f"{milliseconds(latency.median)} (p90 {milliseconds(latency.p90)})"


def same_text_cell(same: SameTexts | None) -> str:
    """Same texts of so many, as ``119/120``."""
    return "-" if same is None else f"{same.identical}/{same.compared}"


def millions(count: float) -> str:
    """Parameters in millions, three digits or more."""
    value = count / 1e6
    digits = next((digits for bound, digits in ((10, 2), (100, 1)) if value < bound), 0)
    return f"{value:.{digits}f}"


def parameters_cell(parameters: Parameters | None) -> str:
    """All parameters and, in brackets, what drafting adds."""
    if parameters is None:
        return "-"
    parts = [("heads", parameters.heads), ("draft model", parameters.draft)]
    added = ", ".join(f"{name} {millions(count)}" for name, count in parts if count)
    return millions(parameters.total) + (f" ({added})" if added else "")


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        title: As shown.
        note: What it means, for the report's end.
        cell: From the row's value to what stands there.
    """

    title: str
    note: str
    cell: Callable[[Any], str] = estimate_cell


COLUMNS: Mapping[str, Column] = {
    "wer": Column("WER [%]", ERROR_RATES),
    "cer": Column("CER [%]", ERROR_RATES),
    "eta": Column(
        "eta", "Eta: decoder calls per word, 2 calls / (reference words + hypothesis words)."
    ),
    "tokens_per_call": Column(
        "tokens per call", "Tokens per call: tokens of the hypotheses over decoder calls."
    ),
    "calls": Column(
        "decoder calls", "Decoder calls: the sum over the utterances, each as if alone.", count_cell
    ),
    "calls_per_utterance": Column(
        "calls per utterance", "Calls per utterance: decoder calls, the mean over the utterances."
    ),
    "nodes_per_call": Column(
        "nodes per call", "Nodes per call: tokens that a decoder call evaluates, drafts included."
    ),
    "acceptance": Column(
        "acceptance [%]",
        "Acceptance: drafted steps that stood, of all that were drafted, those behind the first "
        "refused one included.",
        partial(estimate_cell, digits=1),
    ),
    "draft_calls": Column(
        "draft model's calls", "Draft model's calls: the mean over the utterances."
    ),
    "draft_ms": Column(
        "drafting [ms]",
        "Drafting: milliseconds an utterance, the mean; a part of the latency.",
        partial(estimate_cell, digits=1),
    ),
    "latency": Column(
        "latency [ms]",
        "Latency: milliseconds an utterance, encoder and search, the median and (p90) the 90th "
        "percentile; utterances decoded together share their time evenly.",
        latency_cell,
    ),
    "decoder_rtf": Column(
        "decoder RTF",
        "Decoder RTF: seconds of the search, without the encoder, over those of the audio.",
        partial(estimate_cell, digits=4),
    ),
    "decoder_speedup": Column("decoder speedup", SPEEDUP.format("Decoder speedup", "search")),
    "speedup": Column("speedup", SPEEDUP.format("Speedup", "encoder and search")),
    "same_text": Column(
        "same text",
        "Same text: utterances whose text is that of plain decoding, of those that both decoded.",
        same_text_cell,
    ),
    "parameters": Column(
        "parameters [M]", "Parameters: counted in the checkpoint.", parameters_cell
    ),
}


def row_cells(row: Row, columns: tuple[str, ...]) -> dict[str, str]:
    """Our cells by column; the first one says why there are no figures, if so."""
    if row.absent:
        return dict.fromkeys(columns, "-") | {columns[0]: row.absent}
    return {name: COLUMNS[name].cell(getattr(row, name)) for name in columns}
