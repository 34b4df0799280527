"""The report as Markdown: our figures beside the published ones."""

import os
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.report.measures.table_rows import NOT_FULL, Row
from espnet_medusa.report.plan.figure_plan import (
    CallsAgainstWer,
    CallsPerWord,
    SpeedupByLength,
    WerAgainstCalls,
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
    WerAgainstCalls: "Beside the points: {points}. Left and below is better.",
    CallsAgainstWer: "Beside the points: {points}. Below is better; dotted: plain decoding.",
    CallsPerWord: "Black lines: 95% bootstrap interval over the utterances. Lower is better.",
}
NOT_SCORED = "not run, or not scored"
NO_UTTERANCES = "no utterances to compare"
ONLY_OURS = "Only our figures are drawn."
PUBLISHED_TITLES = {"latency_s": "latency [s]"}  # of measures that no table of ours has


def table_markdown(
    plan: TablePlan, rows: Sequence[Row], published: PublishedTable | None = None, model: str = ""
) -> str:
    """One table with its notes.

    Published figures stand beside ours where system and test set are the paper's; where that
    leaves some out, the paper's table follows.

    Args:
        plan: The table's plan.
        rows: What was measured.
        published: The paper's table; None: there is none.
        model: What our figures are of, for a line beside published ones.
    """
    beside = _beside(plan, rows, published) if published else {}
    titles = ["test set", "system"]
    for name in plan.columns:
        titles += [COLUMNS[name].title] + (["published"] if beside else [])
    lines = []
    for row in rows:
        line = [row.test_set, plan.systems[row.system].name]
        for measure, cell in row_cells(row, plan.columns).items():
            line.append(cell)
            if beside:
                line.append(beside.get((row.system, row.test_set, measure), "-"))
        lines.append(line)
    notes = _table_notes(rows, plan) + (_published_notes(published, model) if published else [])
    listed = "".join(f"- {note}\n" for note in notes)
    text = f"## {plan.title}\n\n{markdown_table(titles, lines)}" + (f"\n{listed}" if listed else "")
    if published and published.figures.keys() - beside.keys():
        text += f"\n{published_markdown(published)}"
    return text


def _beside(
    plan: TablePlan, rows: Sequence[Row], published: PublishedTable
) -> dict[tuple[str, str, str], str]:
    """Published figures that have a cell of ours, by system, test set and measure."""
    places = {(row.system, row.test_set, name) for row in rows for name in plan.columns}
    return {place: value for place, value in published.figures.items() if place in places}


def published_markdown(published: PublishedTable) -> str:
    """A paper's table as printed: a row for each system, columns for each test set."""
    places = [(label, name) for label in published.test_sets for name in published.measures]
    counted = any(row.parameters for row in published.systems.values())
    titles = ["system"]
    for label, name in places:
        test_set = f"{label}: " if len(published.test_sets) > 1 else ""
        titles.append(f"{test_set}{PUBLISHED_TITLES.get(name) or COLUMNS[name].title}")
    lines = []
    for row in published.systems.values():
        cells = [row.cells.get(label, {}).get(name, "-") for label, name in places]
        lines.append([row.name, *cells, *([row.parameters or "-"] if counted else [])])
    titles += [COLUMNS["parameters"].title] if counted else []
    return f"### Published: {published.source}\n\n{markdown_table(titles, lines)}"


def _table_notes(rows: Sequence[Row], plan: TablePlan) -> list[str]:
    speedups = {"speedup", "decoder_speedup"} & set(plan.columns)
    plain = plan.systems[plan.plain].name
    notes = [f"Speedup over: {plain}."] if speedups else []
    notes += [f"Same text as: {plain}."] if "same_text" in plan.columns else []
    sizes = {row.test_set: row.utterances for row in rows if row.utterances}
    if sizes and plan.corpus is None:
        notes += [f"Utterances: {', '.join(f'{n} ({label})' for label, n in sizes.items())}."]
    for row in rows if speedups else ():
        if row.compared and row.compared < row.utterances:
            notes.append(
                f"{row.test_set}, {plan.systems[row.system].name}: speedup over the "
                f"{row.compared} of {row.utterances} utterances that plain decoding has too."
            )
    if any(row.absent.startswith(NOT_FULL) for row in rows):
        notes.append(f"«{NOT_FULL}»: figures of a part of it, or of a stand-in, are not shown.")
    return notes


def _published_notes(published: PublishedTable, model: str) -> list[str]:
    data = f" ({published.data})" if published.data else ""
    notes = [
        f"Published: {published.source}{data}.",
        f"Models: published {published.model}; ours {model}.",
    ]
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
    note = note if plan.published is None else f"{note} {ONLY_OURS}"
    return f"{heading}\n\n![{plan.figure.title}](<{link}>)\n\n{note}\n"


def report_markdown(plan: ReportPlan, environment: Sequence[str], sections: Sequence[str]) -> str:
    """The whole report."""
    head = ["<!-- Generated by espnet_medusa.bin.report -->", f"# {plan.title}", "", *environment]
    shown = {name for table in plan.tables for name in table.columns}
    notes = [column.note for name, column in COLUMNS.items() if name in shown]
    notes = " ".join(dict.fromkeys([*notes, INTERVALS, ABSENT]))
    return "\n".join([*head, "", *sections, notes, ""])
