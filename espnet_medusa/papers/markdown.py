"""The report as Markdown: our figures beside the published ones."""

import os
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.papers.measured import NOT_FULL, Row
from espnet_medusa.papers.parameters import Parameters
from espnet_medusa.papers.plan import TablePlan
from espnet_medusa.papers.published import MEASURES, PublishedTable
from espnet_medusa.papers.spread import Estimate

TITLES = {
    "wer": "WER [%]",
    "cer": "CER [%]",
    "speedup": "speedup",
    "parameters": "parameters [M]",
}
NOTES = (
    "WER and CER: sclite's. Speedup: plain decoding's seconds (encoder and search) over this "
    "one's, the utterances of both; valid where both ran on the same machine with the same dtype "
    "and batch size. In square brackets: 95% bootstrap interval over the utterances. Parameters: "
    'counted in the checkpoint. "-": not measured, or not published where we could read it.'
)
FIGURE_NOTE = (
    "Lines: medians of the utterances' speedups; bars: first to third quartile; below the axis: "
    "tokens of plain decoding's text, and utterances."
)
NO_CURVE = "Only our figures: the numbers behind the published curve were not at hand."


def estimate_cell(estimate: Estimate | None, digits: int = 2) -> str:
    """A value with its interval, as ``4.05 [3.31, 4.83]``."""
    if estimate is None:
        return "-"
    value = f"{estimate.value:.{digits}f}"
    if estimate.low is None:
        return value
    return f"{value} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


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


def row_cells(row: Row) -> dict[str, str]:
    """Our cell of each measure; the first one says why there are no figures, if so."""
    if row.absent:
        return dict.fromkeys(MEASURES, "-") | {"wer": row.absent}
    return {
        "wer": estimate_cell(row.wer),
        "cer": estimate_cell(row.cer),
        "speedup": estimate_cell(row.speedup),
        "parameters": parameters_cell(row.parameters),
    }


def _published_cell(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def table_markdown(
    plan: TablePlan, rows: Sequence[Row], published: PublishedTable | None = None
) -> str:
    """One table with its notes.

    Args:
        plan: The table's plan.
        rows: What was measured.
        published: The paper's table; None: there is none, and no column for it.
    """
    titles = ["test set", "system"]
    for measure in MEASURES:
        titles += [TITLES[measure]] + ([] if published is None else ["published"])
    lines = [_line(titles), "|" + "---|" * len(titles)]
    missing = 0
    for row in rows:
        line = [row.test_set, plan.systems[row.system].name]
        for measure, cell in row_cells(row).items():
            line.append(cell)
            if published is not None:
                value = published.value(row.system, row.test_set, measure)
                missing += value is None
                line.append(_published_cell(value))
        lines.append(_line(line))
    notes = _table_notes(rows, plan) + (_published_notes(published, missing) if published else [])
    return "\n".join([f"## {plan.title}", "", *lines, "", *(f"- {note}" for note in notes), ""])


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(cell.replace("|", "\\|") for cell in cells) + "|"


def _table_notes(rows: Sequence[Row], plan: TablePlan) -> list[str]:
    notes = [f"Speedup over: {plan.systems[plan.plain].name}."]
    for row in rows:
        if row.compared and row.compared < row.utterances:
            notes.append(
                f"{row.test_set}, {plan.systems[row.system].name}: speedup over the "
                f"{row.compared} of {row.utterances} utterances that plain decoding has too."
            )
    if any(row.absent.startswith(NOT_FULL) for row in rows):
        notes.append(f"«{NOT_FULL}»: figures of a part of it, or of a stand-in, are not shown.")
    return notes


def _published_notes(published: PublishedTable, missing: int) -> list[str]:
    notes = [f"Published: {published.name}."]
    sources = dict.fromkeys(figure.source for figure in published.figures)
    notes += [f"Published figures read in: {source}." for source in sources]
    if missing:
        notes.append("The published figures of cells with - were not at hand.")
    notes += [f"Also published: {entry.text} ({entry.source})." for entry in published.statements]
    return notes


def figure_markdown(plan: TablePlan, image: Path | None, report: Path) -> str:
    """The plot of a table, or why there is none.

    Args:
        plan: The table's plan, with a figure.
        image: PNG, None where nothing could be drawn.
        report: The report that shows it; the link is relative to its folder.
    """
    heading = f"### {plan.figure.title}"
    if image is None:
        reason = "no utterances to compare" if plan.corpus is None else NOT_FULL
        return f"{heading}\n\n{reason}\n"
    link = Path(os.path.relpath(image, report.parent)).as_posix()
    note = FIGURE_NOTE if plan.published is None else f"{FIGURE_NOTE} {NO_CURVE}"
    return f"{heading}\n\n![{plan.figure.title}](<{link}>)\n\n{note}\n"


def report_markdown(title: str, environment: Sequence[str], sections: Sequence[str]) -> str:
    """The whole report."""
    head = ["<!-- Generated by espnet_medusa.bin.report -->", f"# {title}", "", *environment]
    return "\n".join([*head, "", *sections, NOTES, ""])
