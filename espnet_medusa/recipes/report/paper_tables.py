"""Write the report of a plan: our measures next to the published figures, and plots."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.options import check_choice
from espnet_medusa.recipes.report.columns import COLUMNS
from espnet_medusa.recipes.report.decodings import DecodedSet
from espnet_medusa.recipes.report.incomplete import IncompleteSets
from espnet_medusa.recipes.report.markdown import markdown_table
from espnet_medusa.recipes.report.plan import (
    CALLS_AGAINST_WER,
    CALLS_PER_WORD,
    SPEEDUP_BY_LENGTH,
    IncludedFile,
    ReportPlan,
    TablePlan,
    read_plan,
)
from espnet_medusa.recipes.report.published import PublishedTable, read_corpora, read_published
from espnet_medusa.recipes.report.results import environment_lines
from espnet_medusa.recipes.report.rows import (
    NOT_COMPLETE,
    NOT_RUN,
    SystemRow,
    measure_rows,
    model_name,
)
from espnet_medusa.recipes.report.table_figures import draw_figure

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
HEADING = re.compile(r"^#+ ", re.MULTILINE)
# `](path`, `](<path with spaces>`; not URLs, `mailto:` and anchors.
LINK = re.compile(r"\]\((<?)(?!(?:[a-z]+:|#))((?<=<)[^<>\n]+|[^<>)\s]+)", re.IGNORECASE)
TITLES = {"latency_s": "latency [s]"} | {name: column.title for name, column in COLUMNS.items()}


def write_papers(
    config: Path,
    published: Path,
    decodings: Sequence[DecodedSet],
    output: Path,
    image_dir: Path,
    incomplete: IncompleteSets,
) -> list[Path]:
    """Write tables and plots by the plan ``config``, and return the files.

    Raises InputError or ValueError if the plan or all of its experiments are not usable.
    """
    plan, figures, corpora = read_plan(config), read_published(published), read_corpora()
    sections, images, measurable = [], [], []
    for number, table in enumerate(plan.tables, 1):
        if table.published is not None:
            check_choice(table.published, list(figures), f"{config}: table {number}")
        rows = measure_rows(table, decodings, corpora, incomplete)
        measurable += [row for row in rows if row.absent != NOT_COMPLETE]
        model = model_name(table, rows) if table.model else ""
        sections.append(table_markdown(table, rows, figures.get(table.published), model))
        if table.figure is not None and not all(row.absent for row in rows):
            kind = table.figure.kind.removesuffix("_by_length")
            path = image_dir / f"{output.stem.lower()}_{kind}_{number}.png"
            image = draw_figure(table, rows, path)
            sections.append(figure_markdown(table, image, output))
            images += [image] if image else []
    incomplete.check_rest(measurable)
    present = [part for part in plan.included if Path(part.file).is_file()]
    sections += [included_markdown(part, output) for part in present]
    missing = [f"{part.title} ({part.file})" for part in plan.included if part not in present]
    sections += [f"Not measured: {', '.join(missing)}.\n"] if missing else []
    sections += [incomplete.markdown()] if incomplete.found else []
    write_atomically(output, report_markdown(plan, environment_lines(), sections))
    return [output, *images]


def table_markdown(
    plan: TablePlan, rows: Sequence[SystemRow], published: PublishedTable | None, model: str
) -> str:
    """Return one table with its notes.

    Rows and columns without a figure of ours are left out; a note names what was not run. A column
    ``published`` has the paper's figures for these rows. The paper's table follows if it has more.
    """
    measured = [row for row in rows if not row.absent]
    figures = published.figures if published else {}
    titles, columns, shown = ["test set", "system"], [], set()
    for name in plan.columns:
        if all(row.values.get(name) is None for row in measured):
            continue
        titles.append(TITLES[name])
        columns.append([COLUMNS[name].cell(row.values.get(name)) for row in measured])
        places = [(row.system, row.test_set, name) for row in measured]
        if not figures.keys().isdisjoint(places):
            titles.append("published")
            columns.append([figures.get(place, "-") for place in places])
            shown.update(places)
    names = [(row.test_set, plan.systems[row.system].name) for row in measured]
    lines = [[*name, *cells] for name, *cells in zip(names, *columns, strict=True)]
    notes = (_table_notes(measured, plan) if measured else []) + _not_run_notes(rows, plan)
    if published:
        data = f" ({published.data})" if published.data else ""
        notes.append(f"Published: {published.source}{data}.")
        notes.append(
            f"Models: published {published.model}" + (f"; ours {model}." if model else ".")
        )
        notes += [f"Also published: {each.text} ({each.source})." for each in published.statements]
    text = f"## {plan.title}\n\n" + (f"{markdown_table(titles, lines)}\n" if measured else "")
    text += "".join(f"- {note}\n" for note in notes)
    return text + (f"\n{published_markdown(published)}" if figures.keys() - shown else "")


def published_markdown(published: PublishedTable) -> str:
    """Return a paper's table as printed: a row for each system, columns for each test set."""
    places = [(label, name) for label in published.test_sets for name in published.measures]
    counted = any(row.parameters for row in published.systems.values())
    titles = ["system"]
    for label, name in places:
        titles.append((f"{label}: " if len(published.test_sets) > 1 else "") + TITLES[name])
    lines = []
    for key, row in published.systems.items():
        cells = [published.figures.get((key, *place), "-") for place in places]
        lines.append([row.name, *cells, *([row.parameters or "-"] if counted else [])])
    titles += [TITLES["parameters"]] if counted else []
    return f"### Published: {published.source}\n\n{markdown_table(titles, lines)}"


def _table_notes(measured: Sequence[SystemRow], plan: TablePlan) -> list[str]:
    speedups = {"speedup", "decoder_speedup"} & set(plan.columns)
    baseline = plan.systems[plan.baseline].name
    notes = [f"Speedup over: {baseline}."] if speedups else []
    notes += [f"Same text as: {baseline}."] if "same_text" in plan.columns else []
    if plan.corpus is None:
        sizes = {row.test_set: len(row.decoding.utterances) for row in measured}
        notes += [f"Utterances: {', '.join(f'{n} ({label})' for label, n in sizes.items())}."]
    for row in measured if speedups else ():
        count = len(row.decoding.utterances) if row.compared else 0
        if row.compared < count:
            notes.append(
                f"{row.test_set}, {plan.systems[row.system].name}: speedup over the "
                f"{row.compared} of {count} utterances that the baseline also decoded."
            )
    return notes


def _not_run_notes(rows: Sequence[SystemRow], plan: TablePlan) -> list[str]:
    """Name what was not run, by test set, and the plan's command."""
    notes, sets = [], []
    for label in dict.fromkeys(row.test_set for row in rows):
        reasons = {row.system: row.absent for row in rows if row.test_set == label}
        names = [
            plan.systems[key].name + (f" ({reason})" if reason != NOT_RUN else "")
            for key, reason in reasons.items()
            if reason
        ]
        if set(reasons.values()) == {NOT_RUN}:
            sets.append(label)
        elif names:
            notes.append(f"Not run: {label}: {'; '.join(names)}.")
    notes += [f"Not run: {', '.join(sets)}."] if sets else []
    if notes and plan.command:
        notes.append(f"Command of what was not run: `{plan.command}`.")
    return notes


def figure_markdown(plan: TablePlan, image: Path | None, report: Path) -> str:
    """Return the section of a table's plot, or a line with the reason why it was not drawn.

    The link is relative to the folder of ``report``.
    """
    figure = plan.figure
    if image is None:
        by_length = figure.kind == SPEEDUP_BY_LENGTH
        reason = "no utterances to compare" if by_length else "not run, or not scored"
        return f"Not drawn: {figure.title} ({reason}).\n"
    link = Path(os.path.relpath(image, report.parent)).as_posix()
    note = FIGURE_NOTES.get(figure.kind, SCATTER_NOTE).format_map(vars(figure))
    note += "" if plan.published is None else " Only our values are drawn."
    return f"### {figure.title}\n\n![{figure.title}](<{link}>)\n\n{note}\n"


def included_markdown(included: IncludedFile, report: Path) -> str:
    """Return a file as a section: headings one level down, links relative to the report."""
    path = Path(included.file)
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"\A# .*\n+", "", text)
    text = HEADING.sub(lambda match: f"#{match[0]}", text)
    here, there = path.parent, report.parent
    text = LINK.sub(lambda link: f"]({link[1]}{os.path.relpath(here / link[2], there)}", text)
    return f"## {included.title}\n\n{text}"


def report_markdown(plan: ReportPlan, environment: Sequence[str], sections: Sequence[str]) -> str:
    head = ["<!-- Generated by espnet_medusa.bin.report -->", f"# {plan.title}", "", *environment]
    shown = {name for table in plan.tables for name in table.columns}
    notes = [column.note for name, column in COLUMNS.items() if name in shown]
    notes = " ".join(dict.fromkeys([*notes, INTERVALS, ABSENT]))
    return "\n".join([*head, "", *sections, notes, ""])
