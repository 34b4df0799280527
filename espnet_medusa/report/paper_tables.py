"""Write the report of a plan: our measures next to the published figures, and plots."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.options import check_choice
from espnet_medusa.report.columns import COLUMNS
from espnet_medusa.report.decodings import Decoding
from espnet_medusa.report.markdown import markdown_table
from espnet_medusa.report.plan import (
    CALLS_AGAINST_WER,
    CALLS_PER_WORD,
    SPEEDUP_BY_LENGTH,
    IncludedFile,
    ReportPlan,
    TablePlan,
    read_plan,
)
from espnet_medusa.report.published import PublishedTable, read_corpora, read_published
from espnet_medusa.report.results import environment_lines
from espnet_medusa.report.rows import NOT_FULL, SystemRow, measure_rows, model_name
from espnet_medusa.report.table_figures import draw_figure

INTERVALS = "In square brackets: 95% bootstrap interval over the utterances."
ABSENT = '"-": not measured, or not published where we could read it.'
SCATTER_NOTE = "Labels of points: {points}. Lower left is better."
FIGURE_NOTES = {
    SPEEDUP_BY_LENGTH: (
        "Lines: median speedup of the utterances; bars: first to third quartile. Below the axis: "
        "tokens of the baseline's text, and number of utterances."
    ),
    CALLS_AGAINST_WER: "Labels of points: {points}. Lower is better. Dotted: the baseline.",
    CALLS_PER_WORD: "Black lines: 95% bootstrap interval over the utterances. Lower is better.",
}
NOT_YET = "not yet measured"
HEADING = re.compile(r"^#+ ", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
TITLES = {"latency_s": "latency [s]"} | {name: column.title for name, column in COLUMNS.items()}


def write_papers(
    config: Path, published: Path, decodings: Sequence[Decoding], output: Path, image_dir: Path
) -> list[Path]:
    """Write tables and plots by the plan ``config``, and return the files.

    Raises InputError or ValueError if the plan, an experiment or a report is not usable.
    """
    plan, figures, corpora = read_plan(config), read_published(published), read_corpora()
    sections, images = [], []
    for number, table in enumerate(plan.tables, 1):
        if table.published is not None:
            check_choice(table.published, list(figures), f"{config}: table {number}")
        rows = measure_rows(table, decodings, corpora)
        model = model_name(table, rows) if table.model else ""
        sections.append(table_markdown(table, rows, figures.get(table.published), model))
        if table.figure is not None:
            kind = table.figure.kind.removesuffix("_by_length")
            path = image_dir / f"{output.stem.lower()}_{kind}_{number}.png"
            image = draw_figure(table, rows, path)
            sections.append(figure_markdown(table, image, output))
            images += [image] if image else []
    sections += [included_markdown(included, output) for included in plan.included]
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, report_markdown(plan, environment_lines(Path.cwd()), sections))
    return [output, *images]


def table_markdown(
    plan: TablePlan,
    rows: Sequence[SystemRow],
    published: PublishedTable | None = None,
    model: str = "",
) -> str:
    """Return one table with its notes.

    A column ``published`` has the figures for the same system and test set. The paper's table
    follows if it has figures for others.
    """
    places = {(row.system, row.test_set, name) for row in rows for name in plan.columns}
    figures = published.figures if published else {}
    shown = {place: value for place, value in figures.items() if place in places}
    titles = ["test set", "system"]
    for name in plan.columns:
        titles += [TITLES[name], *["published"] * bool(shown)]
    lines = []
    for row in rows:
        cells = {name: COLUMNS[name].cell(row.values.get(name)) for name in plan.columns}
        if row.absent:
            cells[plan.columns[0]] = row.absent
        line = [row.test_set, plan.systems[row.system].name]
        for name, cell in cells.items():
            line += [cell, *([shown.get((row.system, row.test_set, name), "-")] if shown else [])]
        lines.append(line)
    notes = _table_notes(rows, plan) + (_published_notes(published, model) if published else [])
    listed = "".join(f"- {note}\n" for note in notes)
    text = f"## {plan.title}\n\n{markdown_table(titles, lines)}" + (f"\n{listed}" if listed else "")
    return text + (f"\n{published_markdown(published)}" if figures.keys() - shown.keys() else "")


def published_markdown(published: PublishedTable) -> str:
    """Return a paper's table as printed: a row for each system, columns for each test set."""
    places = [(label, name) for label in published.test_sets for name in published.measures]
    counted = any(row.parameters for row in published.systems.values())
    titles = ["system"]
    for label, name in places:
        titles.append((f"{label}: " if len(published.test_sets) > 1 else "") + TITLES[name])
    lines = []
    for row in published.systems.values():
        cells = [row.cells.get(label, {}).get(name, "-") for label, name in places]
        lines.append([row.name, *cells, *([row.parameters or "-"] if counted else [])])
    titles += [TITLES["parameters"]] if counted else []
    return f"### Published: {published.source}\n\n{markdown_table(titles, lines)}"


def _table_notes(rows: Sequence[SystemRow], plan: TablePlan) -> list[str]:
    speedups = {"speedup", "decoder_speedup"} & set(plan.columns)
    plain = plan.systems[plan.plain].name
    notes = [f"Speedup over: {plain}."] if speedups else []
    notes += [f"Same text as: {plain}."] if "same_text" in plan.columns else []
    sizes = {row.test_set: len(row.decoding.utterances) for row in rows if not row.absent}
    if sizes and plan.corpus is None:
        notes += [f"Utterances: {', '.join(f'{n} ({label})' for label, n in sizes.items())}."]
    for row in rows if speedups else ():
        count = len(row.decoding.utterances) if row.compared else 0
        if row.compared < count:
            notes.append(
                f"{row.test_set}, {plan.systems[row.system].name}: speedup over the "
                f"{row.compared} of {count} utterances that the baseline also decoded."
            )
    if any(row.absent.startswith(NOT_FULL) for row in rows):
        notes.append(f"«{NOT_FULL}»: figures for a part of it or another corpus are not shown.")
    return notes


def _published_notes(published: PublishedTable, model: str) -> list[str]:
    data = f" ({published.data})" if published.data else ""
    return [
        f"Published: {published.source}{data}.",
        f"Models: published {published.model}; ours {model}.",
        *(f"Also published: {s.text} ({s.source})." for s in published.statements),
    ]


def figure_markdown(plan: TablePlan, image: Path | None, report: Path) -> str:
    """Return the section of a table's plot, or the reason for none; ``report`` links to it."""
    figure, heading = plan.figure, f"### {plan.figure.title}"
    if image is None:
        by_length = figure.kind == SPEEDUP_BY_LENGTH
        nothing = "no utterances to compare" if by_length else "not run, or not scored"
        return f"{heading}\n\n{nothing if plan.corpus is None else NOT_FULL}\n"
    link = Path(os.path.relpath(image, report.parent)).as_posix()
    note = FIGURE_NOTES.get(figure.kind, SCATTER_NOTE).format_map(vars(figure))
    note += "" if plan.published is None else " Only our figures are drawn."
    return f"{heading}\n\n![{figure.title}](<{link}>)\n\n{note}\n"


def included_markdown(included: IncludedFile, report: Path) -> str:
    """Return a file as a section, ``NOT_YET`` if it is missing.

    Headings move one level down, and links become relative to the report's folder.
    """
    path = Path(included.file)
    if not path.is_file():
        return f"## {included.title}\n\n{NOT_YET}\n"
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"\A# .*\n+", "", text)
    text = HEADING.sub(lambda match: f"#{match[0]}", text)
    here, there = path.parent, report.parent
    text = LINK.sub(lambda match: f"]({os.path.relpath(here / match[1], there)})", text)
    return f"## {included.title}\n\n{text}"


def report_markdown(plan: ReportPlan, environment: Sequence[str], sections: Sequence[str]) -> str:
    head = ["<!-- Generated by espnet_medusa.bin.report -->", f"# {plan.title}", "", *environment]
    shown = {name for table in plan.tables for name in table.columns}
    notes = [column.note for name, column in COLUMNS.items() if name in shown]
    notes = " ".join(dict.fromkeys([*notes, INTERVALS, ABSENT]))
    return "\n".join([*head, "", *sections, notes, ""])
