"""Find the decoding of each row of a table, and measure it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from espnet_medusa.errors import InputError
from espnet_medusa.report.decodings import Decoding, is_configuration
from espnet_medusa.report.measures import (
    Estimate,
    Latency,
    Parameters,
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
    same_texts,
    set_ratio,
    speedup,
)
from espnet_medusa.report.plan import LABEL, WHISPER_MODEL, System, TablePlan
from espnet_medusa.report.published import Corpora

NOT_FULL = "not yet run on the full corpus"
NOT_RUN = "not run"
RECORD = "whisper_model"  # written by whisper.sh into the parent of the experiment folders


@dataclass(frozen=True)
class SystemRow:
    """The measures of a system on a test set; None: not measured.

    Attributes:
        system: Key of the system.
        test_set: Label of the test set.
        absent: Why there are no measures; empty if there are some.
        wer, cer: Percent.
        eta: Decoder calls per word.
        tokens_per_call: Tokens of the hypotheses over the calls.
        calls, calls_per_utterance: Decoder calls, of the set and the mean.
        nodes_per_call: Tokens that a decoder call evaluates.
        acceptance: Percent of the drafted steps that were accepted.
        draft_calls: Calls of a draft model per utterance.
        draft_ms: Drafting, ms per utterance.
        latency: Encoder and search.
        decoder_rtf: Search seconds over audio seconds.
        speedup, decoder_speedup: The baseline's seconds over this row's: encoder and search, and
            search alone.
        same_text: Texts that equal the baseline's.
        parameters: Of the model and the draft model.
        compared, utterances: Utterances in common with the baseline, and all.
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
    """Return the decoding of a row; None if there is none.

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
            f"{folders[1]}: is '{exp}', as is {folders[0]}; give one of them, or write the parent "
            "folder, too, in the report's config"
        )
    if len(fitting) > 1:
        tags = ", ".join(item.tag for item in fitting)
        raise InputError(
            f"{exp}: {test_set}: several decodings fit '{system.decoding}': {tags}; write one of "
            "these in the report's config"
        )
    return fitting[0] if fitting else None


def full_size(table: TablePlan, label: str, corpora: Corpora) -> int | None:
    """Return the utterances of the whole test set; None if unknown.

    Raises:
        InputError: The table's corpus is unknown, or its size contradicts the known one.
    """
    given = table.utterances.get(label)
    if table.corpus is None:
        return given
    known = corpora.utterances(table.corpus, label)
    if None not in (known, given) and known != given:
        raise InputError(
            f"{table.title}: utterances of {label}: {given}; the corpus has {known}; remove it"
        )
    return given if known is None else known


def shortfall(table: TablePlan, decoding: Decoding | None, size: int | None) -> str:
    """Return why a decoding does not cover the whole test set; empty if it does."""
    if decoding is None:
        return NOT_RUN if table.corpus is None else NOT_FULL
    count = len(decoding.utterances)
    if size is None:
        return "" if table.corpus is None else f"{NOT_FULL} ({count} utterances; size not given)"
    return "" if count == size else f"{NOT_FULL} ({count} of {size} utterances)"


def measure_rows(
    table: TablePlan, decodings: Sequence[Decoding], corpora: Corpora
) -> list[SystemRow]:
    """Return all rows of a table, test set by test set.

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
            row = SystemRow(key, label, shortfall(table, decoding, size))
            rows.append(row if row.absent else _measure(row, system, decoding, plain))
    return rows


def shown_sets(table: TablePlan, decodings: Sequence[Decoding]) -> Mapping[str, str]:
    """Return folder name to label of the test sets that have rows.

    Without a corpus, test sets that no system decoded are left out if others were decoded.
    """
    decoded = {
        test_set: label
        for test_set, label in table.test_sets.items()
        for system in table.systems.values()
        if find_decoding(decodings, system, test_set, label)
    }
    return decoded if decoded and table.corpus is None else table.test_sets


def _measure(
    row: SystemRow, system: System, decoding: Decoding, plain: Decoding | None
) -> SystemRow:
    row = replace(
        row,
        wer=error_rate(decoding.folder / "score_wer" / "result.txt"),
        cer=error_rate(decoding.folder / "score_cer" / "result.txt"),
        latency=latency(decoding),
        decoder_rtf=set_ratio(decoding, "decoder_seconds", "audio_seconds"),
        speedup=speedup(decoding, plain, "total_seconds"),
        decoder_speedup=speedup(decoding, plain, "decoder_seconds"),
        same_text=same_texts(decoding, plain),
        parameters=model_parameters(decoding, system.draft_model),
        compared=len(common_utterances(decoding, plain)),
        utterances=len(decoding.utterances),
    )
    if not calls_known(decoding):
        return row
    return replace(
        row,
        eta=calls_per_word(decoding.folder / "statistics.json"),
        tokens_per_call=set_ratio(decoding, "tokens", "decoder_calls"),
        calls=decoding.total.decoder_calls,
        calls_per_utterance=per_utterance(decoding, "decoder_calls") or Estimate(0.0),
        nodes_per_call=set_ratio(decoding, "nodes", "decoder_calls"),
        acceptance=acceptance(decoding),
        draft_calls=per_utterance(decoding, "draft_calls"),
        draft_ms=draft_milliseconds(decoding),
    )


def model_name(table: TablePlan, decodings: Sequence[Decoding]) -> str:
    """Return the model of our measures in a table; its plan has ``model``.

    Raises:
        InputError: Several decodings fit a row.
    """
    if WHISPER_MODEL not in table.model:
        return table.model
    rows = [
        find_decoding(decodings, system, test_set, label)
        for test_set, label in table.test_sets.items()
        for system in table.systems.values()
    ]
    records = [decoding.exp_dir.absolute().parent / RECORD for decoding in rows if decoding]
    if not records:
        return "not run yet"
    names = [
        # Only the last part of a local path is shown, because the path is private.
        path.read_text(encoding="utf-8").strip().rstrip("/").split("/")[-1]
        if path.is_file()
        else f"Whisper of a size that no file {RECORD} beside the experiments tells"
        for path in dict.fromkeys(records)
    ]
    return table.model.replace(WHISPER_MODEL, ", ".join(dict.fromkeys(names)))
