"""Tables of `who_drafts.py`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from learning_curve import plot_curves
from who_drafts_plan import Way
from word_errors import word_errors

from espnet_medusa.inference.journal import Decoded
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.report.measures import Estimate, ratio_of_sums
from espnet_medusa.report.paper_tables import estimate_cell, milliseconds
from espnet_medusa.search.statistics import DecodingStatistics

MILLI = 1000.0
FIRST_STEPS = 8  # whose acceptance is shown
TIE = 1e-3  # scores that are closer are the same: sums round differently
COUNTED = ("WER [%]", "calls an utterance", "tokens a call", "nodes a call",
           f"accepted, steps 1 .. {FIRST_STEPS} [%]", "draft model's calls")  # fmt: skip
TIMED = ("decoder ms (median)", "decoder s (all)", "drafting ms", "times no drafts' speed")
NOTES = """\
- WER behind the cleaner {cleaner}. *Accepted*: of the drafts of this step, those that needed no
  further call. In square brackets: 95% bootstrap interval over the utterances.
- *Same text*, *same n-best*: as {first} in the same search. N-best lists are the same where
  they hold the same token sequences, with scores that differ by less than {tie:g}; greedy search
  has one text.
"""
TIME_NOTES = """\
- *Decoder*: search without the encoder, drafting included; median over utterances, and of all
  together. *Drafting*, the mean, is a part of it, with a draft model's own encoder and CTC's
  projection. *Times no drafts' speed*: seconds of {first} over these, all utterances.
- The encoder, features included, took {encoder:.0f} ms an utterance (median): once for all rows.
"""


@dataclass(frozen=True)
class Circumstances:
    """Under which the figures hold.

    Attributes:
        title: Of the plan.
        data: Name of the set.
        references: N texts.
        cleaner: Of texts before WER.
        batch_size: Utterances together.
        texts: Whether texts alone are compared.
        machine: As ``describe_machine`` says.
        left_out: By drafter, why it is not there.
        too_long: Utterances that the models refuse.
    """

    title: str
    data: str
    references: list[str]
    cleaner: str
    batch_size: int
    texts: bool
    machine: dict
    left_out: Mapping[str, str]
    too_long: list[str]


@dataclass(frozen=True)
class Measured:
    """A way's results of N utterances, in order."""

    way: Way
    decoded: list[Decoded]


@dataclass(frozen=True)
class Row:
    """Figures of a way; ``None`` where there are none.

    Attributes:
        search, drafter: Names.
        greedy: Whether the search has one hypothesis.
        curve, hours: Of a learning curve.
        utterances: N.
        wer: Percent.
        calls: Decoder calls an utterance.
        accepted: Percent by step drafted ahead.
        draft_calls: Calls of a draft model, an utterance.
        decoder_ms: Median; ``seconds`` are of all together.
        draft_ms: Mean.
        encoder_ms: Median; the same run of the encoder for all rows.
        speed: Seconds without drafts over these.
        same: Utterances with the text, or the n-best list, of no drafts.
    """

    search: str
    drafter: str
    greedy: bool
    curve: str | None
    hours: float | None
    utterances: int
    wer: Estimate | None
    calls: Estimate | None
    tokens_per_call: Estimate | None
    nodes_per_call: float
    accepted: list[float]
    draft_calls: float | None
    decoder_ms: float
    seconds: float
    draft_ms: float
    encoder_ms: float
    speed: Estimate | None
    same: int


def make_rows(measured: Sequence[Measured], references: Sequence[str], cleaner: str) -> list[Row]:
    """A row for each way; the first of a search is what its others are compared with."""
    first: dict[str, Measured] = {}
    for one in measured:
        first.setdefault(one.way.search, one)
    return [_row(one, first[one.way.search], references, cleaner) for one in measured]


def _row(one: Measured, plain: Measured, references: Sequence[str], cleaner: str) -> Row:
    costs = [decoded.statistics for decoded in one.decoded]
    total, count = sum(costs, DecodingStatistics()), len(costs)
    summary = total.summary()
    errors = word_errors(references, [best_text(decoded) for decoded in one.decoded], cleaner)
    calls = np.array([cost.decoder_calls for cost in costs])
    seconds = np.array([cost.decoder_seconds for cost in costs])
    plain_seconds = np.array([decoded.statistics.decoder_seconds for decoded in plain.decoded])
    pairs = zip(one.decoded, plain.decoded, strict=True)
    same = sum(agree(found, expected, one.way.greedy) for found, expected in pairs)
    return Row(
        search=one.way.search,
        drafter=one.way.name,
        greedy=one.way.greedy,
        curve=one.way.drafter.curve,
        hours=one.way.drafter.hours,
        utterances=count,
        wer=ratio_of_sums(
            np.array([100 * counts.errors for counts in errors]),
            np.array([counts.words for counts in errors]),
        ),
        calls=ratio_of_sums(calls, np.ones(count)),
        tokens_per_call=ratio_of_sums(np.array([cost.tokens for cost in costs]), calls),
        nodes_per_call=summary["nodes_per_call"],
        accepted=[100 * share for share in summary["acceptance_per_head"]],
        draft_calls=total.draft_calls / count if total.draft_calls else None,
        decoder_ms=MILLI * median(seconds),
        seconds=float(sum(seconds)),
        draft_ms=MILLI * total.draft_seconds / count,
        encoder_ms=MILLI * median(cost.total_seconds - cost.decoder_seconds for cost in costs),
        speed=None if one is plain else ratio_of_sums(plain_seconds, seconds),
        same=same,
    )


def best_text(decoded: Decoded) -> str:
    """Of the best hypothesis; empty where none ended."""
    return (decoded.nbest[0].text or "") if decoded.nbest else ""


def agree(found: Decoded, expected: Decoded, greedy: bool) -> bool:
    """Whether texts (greedy search), or n-best lists up to ties, are the same."""
    if greedy:
        return best_text(found) == best_text(expected)
    scores, wanted = (
        {tuple(one.token_int): float(one.score) for one in decoded.nbest}
        for decoded in (found, expected)
    )
    return (
        len(found.nbest) == len(expected.nbest)
        and scores.keys() == wanted.keys()
        and all(abs(score - wanted[tokens]) < TIE for tokens, score in scores.items())
    )


def write_report(measured: Sequence[Measured], about: Circumstances, output: Path) -> None:
    """Write ``output``, Markdown; beside it the same as JSON and, of learning curves, a plot."""
    rows = make_rows(measured, about.references, about.cleaner)
    output.parent.mkdir(parents=True, exist_ok=True)
    text = report_markdown(rows, about)
    points = [row for row in rows if row.hours is not None]
    if points:
        image = output.with_suffix(".png")
        plot_curves(points, image)
        text += f"\n![Tokens a call by hours of training speech]({image.name})\n"
    output.write_text(text, encoding="utf-8")
    kept = {name: value for name, value in vars(about).items() if name != "references"}
    report = {**kept, "rows": [asdict(row) for row in rows]}
    text = json.dumps(report, indent=1) + "\n"
    output.with_suffix(".json").write_text(text, encoding="utf-8")


def report_markdown(rows: Sequence[Row], about: Circumstances) -> str:
    """A table for each search."""
    machine = about.machine
    lead = f"{len(about.references)} utterances of {about.data}"
    together = "one by one" if about.batch_size == 1 else f"{about.batch_size} together"
    if not about.texts:
        lead += f", {together}; {machine['processor']}, {machine['threads']} threads"
    parts = [f"# {about.title}\n", f"{lead}.\n"]
    for search in dict.fromkeys(row.search for row in rows):
        group = [row for row in rows if row.search == search]
        parts.append(f"## {search}\n\n{table(group, about.texts)}")
    notes = NOTES + ("" if about.texts else TIME_NOTES)
    parts.append(
        notes.format(
            cleaner=about.cleaner, first=rows[0].drafter, tie=TIE,
            encoder=median(row.encoder_ms for row in rows),
        )
    )  # fmt: skip
    parts += [f"- Left out: {name} ({reason}).\n" for name, reason in about.left_out.items()]
    if about.too_long:
        parts.append(f"- Longer than the models read: {', '.join(about.too_long)}.\n")
    return "\n".join(parts)


def table(rows: Sequence[Row], texts: bool) -> str:
    """Of one search."""
    same = "same text" if rows[0].greedy else "same n-best"
    titles = ["who drafts", *COUNTED, *(() if texts else TIMED), same]
    return markdown_table(titles, [_cells(row, texts) for row in rows], text_columns=1)


def _cells(row: Row, texts: bool) -> list[str]:
    steps = " ".join(f"{share:.0f}" for share in row.accepted[:FIRST_STEPS])
    cells = [
        row.drafter, estimate_cell(row.wer), estimate_cell(row.calls),
        estimate_cell(row.tokens_per_call), f"{row.nodes_per_call:.1f}", steps or "-",
        "-" if row.draft_calls is None else f"{row.draft_calls:.1f}",
    ]  # fmt: skip
    if not texts:
        drafting = milliseconds(row.draft_ms) if row.accepted else "-"
        cells += [milliseconds(row.decoder_ms), f"{row.seconds:.1f}", drafting]
        cells.append("1.00" if row.speed is None else estimate_cell(row.speed))
    return [*cells, f"{row.same}/{row.utterances}"]
