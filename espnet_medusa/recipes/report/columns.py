"""The columns of tables: how each is titled, measured and printed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from espnet_medusa.recipes.report import measures
from espnet_medusa.recipes.report.decodings import DecodedSet

ERROR_RATES = "WER and CER: sclite's."
SPEEDUP = (
    "{}: the baseline's seconds ({}) over this decoding's, for utterances of both; valid if both "
    "ran on the same machine with the same dtype and batch size."
)


@dataclass(frozen=True)
class Column:
    title: str
    note: str  # for the end of the report
    # Arguments: the decoding, the baseline, and the draft model of the plan; None: not measured.
    measure: Callable[[DecodedSet, DecodedSet | None, str | None], Any]
    digits: int = 2  # after the decimal point

    def cell(self, value: Any) -> str:
        if isinstance(value, measures.Estimate):
            return value.cell(self.digits)
        return "-" if value is None else str(value)


CALL_COLUMNS: Mapping[str, Column] = {  # need counted decoder calls
    "eta": Column(
        "eta",
        "Eta: decoder calls per word, 2 calls / (reference words + hypothesis words).",
        lambda item, *_: measures.calls_per_word(item.folder / "statistics.json"),
    ),
    "tokens_per_call": Column(
        "tokens per call",
        "Tokens per call: tokens of the hypotheses over decoder calls.",
        lambda item, *_: measures.set_ratio(item, "tokens", "decoder_calls"),
    ),
    "calls": Column(
        "decoder calls",
        "Decoder calls: sum over the utterances, each counted as if decoded alone.",
        lambda item, *_: item.total.decoder_calls,
    ),
    "calls_per_utterance": Column(
        "calls per utterance",
        "Calls per utterance: decoder calls, the mean over the utterances.",
        lambda item, *_: measures.per_utterance(item, "decoder_calls") or measures.Estimate(0.0),
    ),
    "nodes_per_call": Column(
        "nodes per call",
        "Nodes per call: tokens that a decoder call evaluates, drafts included.",
        lambda item, *_: measures.set_ratio(item, "nodes", "decoder_calls"),
    ),
    "acceptance": Column(
        "acceptance [%]",
        "Acceptance: accepted steps over all drafted steps, including those after the first "
        "rejected one.",
        lambda item, *_: measures.ratio_of_sums(
            100 * measures.counts(item, "accepted"), measures.counts(item, "drafted")
        ),
        digits=1,
    ),
    "draft_calls": Column(
        "draft model's calls",
        "Draft model's calls: mean per utterance.",
        lambda item, *_: measures.per_utterance(item, "draft_calls"),
    ),
    "draft_ms": Column(
        "drafting [ms]",
        "Drafting: mean milliseconds per utterance; a part of the latency.",
        lambda item, *_: measures.draft_milliseconds(item),
        digits=1,
    ),
}
COLUMNS: Mapping[str, Column] = {
    "wer": Column("WER [%]", ERROR_RATES, lambda item, *_: measures.error_rate(item.result("wer"))),
    "cer": Column("CER [%]", ERROR_RATES, lambda item, *_: measures.error_rate(item.result("cer"))),
    **CALL_COLUMNS,
    "latency": Column(
        "latency [ms]",
        "Latency: milliseconds per utterance of encoder and search: median and (p90) 90th "
        "percentile; utterances decoded together share their time evenly.",
        lambda item, *_: measures.latency(item),
    ),
    "decoder_rtf": Column(
        "decoder RTF",
        "Decoder RTF: seconds of the search, without the encoder, over seconds of audio.",
        lambda item, *_: measures.set_ratio(item, "decoder_seconds", "audio_seconds"),
        digits=4,
    ),
    "decoder_speedup": Column(
        "decoder speedup",
        SPEEDUP.format("Decoder speedup", "search"),
        lambda item, baseline, _: measures.speedup(item, baseline, "decoder_seconds"),
    ),
    "speedup": Column(
        "speedup",
        SPEEDUP.format("Speedup", "encoder and search"),
        lambda item, baseline, _: measures.speedup(item, baseline, "total_seconds"),
    ),
    "same_text": Column(
        "same text",
        "Same text: utterances with the baseline's text, of those that both decoded.",
        lambda item, baseline, _: measures.same_texts(item, baseline),
    ),
    "same_nbest": Column(
        "same n-best",
        "Same n-best: utterances with the baseline's n-best list: the same tokens in the same "
        "order, and scores within 0.01%.",
        lambda item, baseline, _: measures.same_nbest(item, baseline),
    ),
    "parameters": Column(
        "parameters [M]",
        "Parameters: counted in the checkpoint.",
        lambda item, _, draft_model: measures.model_parameters(item, draft_model),
    ),
}


def measure_all(
    decoding: DecodedSet, baseline: DecodedSet | None, draft_model: str | None
) -> dict[str, Any]:
    """Return the measured values by column; raise ValueError for an unreadable file."""
    counted = measures.calls_known(decoding)
    return {
        name: column.measure(decoding, baseline, draft_model)
        for name, column in COLUMNS.items()
        if counted or name not in CALL_COLUMNS
    }
