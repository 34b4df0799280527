"""The report as Markdown: our figures beside the published ones."""

import os
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.report.measures.table_rows import NOT_FULL, Row
from espnet_medusa.report.plan.figure_plan import (
    CallsAgainstWer,
    CallsPerWord,
    SpeedupByLength,
    WerAgainstEta,
    WerAgainstLatency,
)
from espnet_medusa.report.plan.published import PublishedTable
from espnet_medusa.report.plan.report_plan import ReportPlan, TablePlan
from espnet_medusa.report.tables.columns import COLUMNS, row_cells
from espnet_medusa.report.tables.markdown import markdown_table

INTERVALS = "In square brackets: 95% bootstrap interval over the utterances."
ABSENT = '"-": not measured, or not published where we could read it.'
FIGURE_NOTES = {
    SpeedupByLength: (
        "Lines: medians of the utterances' speedups; bars: first to third quartile; below the "
        "axis: tokens of plain decoding's text, and utterances."
    ),
    WerAgainstEta: "Figures beside the points: {points}. Left and below is better.",
    WerAgainstLatency: "Beside the points: {points}. Left and below is better.",
    CallsAgainstWer: "Beside the points: {points}. Below is better; dotted: plain decoding.",
    CallsPerWord: "Black lines: 95% bootstrap interval over the utterances. Lower is better.",
}
NOT_SCORED = "not run, or not scored"
NO_UTTERANCES = "no utterances to compare"
NO_CURVE = "Only our figures: the numbers behind the published curve were not at hand."


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
    for name in plan.columns:
        titles += [COLUMNS[name].title] + ([] if published is None else ["published"])
    lines, missing = [], 0
    for row in rows:
        line = [row.test_set, plan.systems[row.system].name]
        for measure, cell in row_cells(row, plan.columns).items():
            line.append(cell)
            if published is not None:
                value = published.value(row.system, row.test_set, measure)
                missing += value is None
                line.append(_published_cell(value))
        lines.append(line)
    notes = _table_notes(rows, plan) + (_published_notes(published, missing) if published else [])
    listed = "".join(f"- {note}\n" for note in notes)
    table = markdown_table(titles, lines)
    return f"## {plan.title}\n\n{table}" + (f"\n{listed}" if listed else "")


def _table_notes(rows: Sequence[Row], plan: TablePlan) -> list[str]:
    speedups = {"speedup", "decoder_speedup"} & set(plan.columns)
    plain = plan.systems[plan.plain].name
    notes = [f"Speedup over: {plain}."] if speedups else []
    notes += [f"Same text as: {plain}."] if "same_text" in plan.columns else []
    for row in rows if speedups else ():
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
        nothing = NO_UTTERANCES if isinstance(plan.figure, SpeedupByLength) else NOT_SCORED
        reason = nothing if plan.corpus is None else NOT_FULL
        return f"{heading}\n\n{reason}\n"
    link = Path(os.path.relpath(image, report.parent)).as_posix()
    note = FIGURE_NOTES[type(plan.figure)].format_map(vars(plan.figure))
    note = note if plan.published is None else f"{note} {NO_CURVE}"
    return f"{heading}\n\n![{plan.figure.title}](<{link}>)\n\n{note}\n"


def report_markdown(plan: ReportPlan, environment: Sequence[str], sections: Sequence[str]) -> str:
    """The whole report."""
    head = ["<!-- Generated by espnet_medusa.bin.report -->", f"# {plan.title}", "", *environment]
    shown = {name for table in plan.tables for name in table.columns}
    notes = [column.note for name, column in COLUMNS.items() if name in shown]
    notes = " ".join(dict.fromkeys([*notes, INTERVALS, ABSENT]))
    return "\n".join([*head, "", *sections, notes, ""])
