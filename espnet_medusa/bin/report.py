"""Write the papers' tables and figures with our figures beside the published ones."""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import run_main
from espnet_medusa.options import check_choice
from espnet_medusa.report.figures.draw import FILE_WORDS, draw_figure
from espnet_medusa.report.measures.table_rows import measure_rows, read_experiments
from espnet_medusa.report.plan.published import PUBLISHED, read_corpora, read_published
from espnet_medusa.report.plan.report_plan import read_plan
from espnet_medusa.report.tables.error_rates import environment_lines
from espnet_medusa.report.tables.paper_tables import (
    figure_markdown,
    report_markdown,
    table_markdown,
)


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Write the papers' tables and figures.")
    parser.add_argument(
        "--exp_dirs", type=Path, nargs="+", required=True, help="such as exp/asr_linear"
    )
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        help="which experiment and test set belong to which row, such as conf/report/NAME.yaml",
    )
    parser.add_argument(
        "--published",
        type=Path,
        default=PUBLISHED,
        help="the papers' figures with their sources (default: those of the package)",
    )
    parser.add_argument("--output", type=Path, required=True, help="REPORT.md to write")
    parser.add_argument(
        "--image_dir", type=Path, help="folder for plots (default: images beside the report)"
    )
    return parser


def work(args: argparse.Namespace) -> None:
    """Write the report and its plots, and say where they are.

    Raises:
        InputError, ValueError: The config, an experiment or a report is not usable.
    """
    plan, published, corpora = (
        read_plan(args.config),
        read_published(args.published),
        read_corpora(),
    )
    decodings = read_experiments(args.exp_dirs)
    image_dir = args.image_dir or args.output.parent / "images"
    sections, images = [], []
    for number, table in enumerate(plan.tables, 1):
        if table.published is not None:
            check_choice(table.published, list(published), f"{args.config}: table {number}")
        rows = measure_rows(table, decodings, corpora)
        sections.append(table_markdown(table, rows, published.get(table.published)))
        if table.figure is not None:
            words = args.output.stem.lower(), FILE_WORDS[type(table.figure)], str(number)
            path = image_dir / f"{'_'.join(words)}.png"
            image = draw_figure(table, rows, decodings, corpora, path)
            sections.append(figure_markdown(table, image, args.output))
            images += [image] if image else []
    args.output.parent.mkdir(parents=True, exist_ok=True)
    text = report_markdown(plan, environment_lines(Path.cwd()), sections)
    args.output.write_text(text, encoding="utf-8")
    print("\n".join(str(path) for path in (args.output, *images)))


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("report", lambda: work(args))


if __name__ == "__main__":
    main()
