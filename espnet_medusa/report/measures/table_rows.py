"""Which decoding belongs to a row of a table, and what was measured for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from espnet_medusa.errors import InputError
from espnet_medusa.report.measures.bootstrap import Estimate
from espnet_medusa.report.measures.decoding_measures import (
    Latency,
    SameTexts,
    acceptance,
    calls_known,
    calls_per_word,
    common_utterances,
    draft_milliseconds,
    error_rate,
    latency,
    model_parameters,
    per_utterance,
    seconds_over,
    set_ratio,
    texts_kept,
)
from espnet_medusa.report.measures.decodings import Decoding, is_configuration
from espnet_medusa.report.measures.parameters import Parameters
from espnet_medusa.report.plan.published import Corpora
from espnet_medusa.report.plan.report_plan import LABEL, System, TablePlan

NOT_FULL = "not yet run on the full corpus"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Row:
    """A system on a test set; None where something was not measured.

    Attributes:
        system: Key of the system.
        test_set: Label of the test set.
        absent: Why there are no figures at all; empty where there are some.
        wer, cer: Percent.
        eta: Decoder calls per word.
        tokens_per_call: Tokens of the hypotheses, over the calls.
        calls, calls_per_utterance: Decoder calls, of the set and in the mean.
        nodes_per_call: Tokens that a decoder call evaluated.
        acceptance: Percent of the drafted steps that stood.
        draft_calls: Calls of a draft model, an utterance.
        draft_ms: Drafting, ms an utterance.
        latency: Encoder and search, ms an utterance.
        decoder_rtf: Seconds of the search, over those of the audio.
        speedup, decoder_speedup: Plain decoding's seconds over this one's: encoder and search,
            and search alone.
        same_text: Texts that are plain decoding's.
        parameters: Of the model, and of another that drafts.
        compared, utterances: Utterances that both decoded, and all of this decoding.
    """

    system: str
    test_set: str
    absent: str = ""
    wer: Estimate | None = None
    cer: Estimate | None = None
    eta: Estimate | None = None
    tokens_per_call: Estimate | None = None
    calls: int | None = None
    calls_per_utterance: Estimate | None = None
    nodes_per_call: Estimate | None = None
    acceptance: Estimate | None = None
    draft_calls: Estimate | None = None
    draft_ms: Estimate | None = None
    latency: Latency | None = None
    decoder_rtf: Estimate | None = None
    speedup: Estimate | None = None
    decoder_speedup: Estimate | None = None
    same_text: SameTexts | None = None
    parameters: Parameters | None = None
    compared: int = 0
    utterances: int = 0


def find_decoding(
    decodings: Sequence[Decoding], system: System, test_set: str, label: str
) -> Decoding | None:
    """The decoding of a row, None where there is none.

    Raises:
        InputError: Several fit.
    """
    exp = system.exp.replace(LABEL, label)
    parts = Path(exp).parts
    fitting = [
        item
        for item in decodings
        if item.exp_dir.parts[-len(parts) :] == parts
        and item.test_set == test_set
        and is_configuration(item, item.exp_dir / system.decoding)
    ]
    folders = list(dict.fromkeys(str(item.exp_dir) for item in fitting))
    if len(folders) > 1:
        raise InputError(
            f"{folders[1]}: is '{exp}', as is {folders[0]}; give one of them, or write "
            "the folder above it, too, in the report's config"
        )
    if len(fitting) > 1:
        tags = ", ".join(item.tag for item in fitting)
        raise InputError(
            f"{exp}: {test_set}: several decodings fit '{system.decoding}': {tags}; write one of "
            "these in the report's config"
        )
    return fitting[0] if fitting else None


def full_size(table: TablePlan, label: str, corpora: Corpora) -> int | None:
    """Utterances of the whole test set, None where that is not known.

    Raises:
        InputError: The table's corpus is unknown, or its size contradicts the known one.
    """
    given = table.utterances.get(label)
    if table.corpus is None:
        return given
    known = corpora.utterances(table.corpus, label)
    if None not in (known, given) and known != given:
        raise InputError(
            f"{table.title}: utterances of {label}: {given}; the corpus has {known}; leave it out"
        )
    return given if known is None else known


def shortfall(table: TablePlan, decoding: Decoding | None, size: int | None) -> str:
    """Why a decoding does not count as one of the whole test set; empty where it does."""
    if decoding is None:
        return NOT_RUN if table.corpus is None else NOT_FULL
    count = len(decoding.utterances)
    if size is None:
        return "" if table.corpus is None else f"{NOT_FULL} ({count} utterances; size not given)"
    return "" if count == size else f"{NOT_FULL} ({count} of {size} utterances)"


def measure_rows(table: TablePlan, decodings: Sequence[Decoding], corpora: Corpora) -> list[Row]:
    """All rows of a table, test set by test set.

    Where the size of the corpus does not matter, sets that no system decoded are left out beside
    others: a recipe decodes whole sets or parts of them.

    Raises:
        InputError, ValueError: The plan does not fit, or a report or checkpoint is unreadable.
    """
    rows = []
    for test_set, label in shown_sets(table, decodings).items():
        size = full_size(table, label, corpora)
        plain = find_decoding(decodings, table.systems[table.plain], test_set, label)
        if shortfall(table, plain, size):
            plain = None
        for key, system in table.systems.items():
            decoding = find_decoding(decodings, system, test_set, label)
            absent = shortfall(table, decoding, size)
            if absent:
                rows.append(Row(key, label, absent))
            else:
                rows.append(_measure(key, label, system, decoding, plain))
    return rows


def shown_sets(table: TablePlan, decodings: Sequence[Decoding]) -> Mapping[str, str]:
    """Folder name to label of the test sets that have rows."""
    decoded = {
        test_set: label
        for test_set, label in table.test_sets.items()
        for system in table.systems.values()
        if find_decoding(decodings, system, test_set, label)
    }
    return decoded if decoded and table.corpus is None else table.test_sets


def _measure(
    key: str, label: str, system: System, decoding: Decoding, plain: Decoding | None
) -> Row:
    row = Row(
        key,
        label,
        wer=error_rate(decoding.folder / "score_wer" / "result.txt"),
        cer=error_rate(decoding.folder / "score_cer" / "result.txt"),
        latency=latency(decoding),
        decoder_rtf=set_ratio(decoding, "decoder_seconds", "audio_seconds"),
        speedup=seconds_over(decoding, plain, "total_seconds"),
        decoder_speedup=seconds_over(decoding, plain, "decoder_seconds"),
        same_text=texts_kept(decoding, plain),
        parameters=model_parameters(decoding, system.draft_model),
        compared=len(common_utterances(decoding, plain)),
        utterances=len(decoding.utterances),
    )
    return replace(row, **_counted(decoding)) if calls_known(decoding) else row


def _counted(decoding: Decoding) -> dict[str, Estimate | int | None]:
    """What decoder calls and drafts came to, by name of the measure."""
    return {
        "eta": calls_per_word(decoding.folder / "statistics.json"),
        "tokens_per_call": set_ratio(decoding, "tokens", "decoder_calls"),
        "calls": decoding.total.decoder_calls,
        "calls_per_utterance": per_utterance(decoding, "decoder_calls") or Estimate(0.0),
        "nodes_per_call": set_ratio(decoding, "nodes", "decoder_calls"),
        "acceptance": acceptance(decoding),
        "draft_calls": per_utterance(decoding, "draft_calls"),
        "draft_ms": draft_milliseconds(decoding),
    }
