"""The papers' tables and figures with our figures beside the published ones."""

from collections.abc import Sequence
from pathlib import Path

from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.options import check_choice
from espnet_medusa.report.figures.draw import FILE_WORDS, draw_figure
from espnet_medusa.report.measures.decodings import Decoding
from espnet_medusa.report.measures.models import model_name
from espnet_medusa.report.measures.table_rows import measure_rows
from espnet_medusa.report.plan.published import read_corpora, read_published
from espnet_medusa.report.plan.report_plan import read_plan
from espnet_medusa.report.tables.error_rates import environment_lines
from espnet_medusa.report.tables.included import included_markdown
from espnet_medusa.report.tables.paper_tables import (
    figure_markdown,
    report_markdown,
    table_markdown,
)


def write_papers(
    config: Path, published: Path, decodings: Sequence[Decoding], output: Path, image_dir: Path
) -> list[Path]:
    """Write the report that a plan describes, and its plots.

    Args:
        config: The plan: which experiment and test set belong to which row.
        published: The papers' figures.
        decodings: Of the experiments.
        output: REPORT.md to write.
        image_dir: Folder for plots.

    Returns:
        The files.

    Raises:
        InputError, ValueError: The plan, an experiment or a report is not usable.
    """
    plan, figures, corpora = read_plan(config), read_published(published), read_corpora()
    sections, images = [], []
    for number, table in enumerate(plan.tables, 1):
        if table.published is not None:
            check_choice(table.published, list(figures), f"{config}: table {number}")
        rows = measure_rows(table, decodings, corpora)
        model = model_name(table, decodings) if table.model else ""
        sections.append(table_markdown(table, rows, figures.get(table.published), model))
        if table.figure is not None:
            words = output.stem.lower(), FILE_WORDS[type(table.figure)], str(number)
            path = image_dir / f"{'_'.join(words)}.png"
            image = draw_figure(table, rows, decodings, corpora, path)
            sections.append(figure_markdown(table, image, output))
            images += [image] if image else []
    sections += [included_markdown(included, output) for included in plan.included]
    output.parent.mkdir(parents=True, exist_ok=True)
    text = report_markdown(plan, environment_lines(Path.cwd()), sections)
    write_atomically(output, text)
    return [output, *images]
