"""Tables and plots of experiments: RESULTS.md, or with --config the papers' tables.

Takes what ESPnet's recipe or ours decoded and scored, by whichever command. Where ESPnet's recipe
left the statistics of jobs, a statistics.json beside each decoded text joins them.
"""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import run_main
from espnet_medusa.report.decodings import (
    check_decoded,
    check_experiments,
    complete_statistics,
    read_experiments,
)
from espnet_medusa.report.paper_tables import write_papers
from espnet_medusa.report.published import PUBLISHED
from espnet_medusa.report.results import default_output, write_results


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "exp_dirs", metavar="EXP", type=Path, nargs="+", help="experiment, such as exp/asr_linear"
    )
    parser.add_argument(
        "--plain",
        metavar="EXP/TAG",
        type=Path,
        help="decoding that the others are compared with: experiment and inference tag; the tag's "
        "`_asr_model_...` may be left out",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="Markdown to write (default: EXP/RESULTS.md; of several experiments, RESULTS.md in "
        "the folder that they have in common); decoding.json goes beside it",
    )
    parser.add_argument(
        "--image_dir", type=Path, help="folder for plots (default: images beside the output)"
    )
    parser.add_argument(
        "--config",
        metavar="PLAN",
        type=Path,
        help="write the papers' tables instead: which experiment and test set belong to which "
        "row, such as conf/report/NAME.yaml; needs --output",
    )
    parser.add_argument(
        "--published",
        type=Path,
        default=PUBLISHED,
        help="for --config: the papers' figures with their sources (default: those of the package)",
    )
    return parser


def work(args: argparse.Namespace) -> None:
    """Write the tables and plots, and say where they are.

    Raises:
        InputError, ValueError: The plan, an experiment or a report is not usable.
    """
    exp_dirs = list(dict.fromkeys(args.exp_dirs))
    check_experiments(exp_dirs)
    written = [path for exp_dir in exp_dirs for path in complete_statistics(exp_dir)]
    decodings = read_experiments(exp_dirs)
    output = args.output or default_output(exp_dirs)
    image_dir = args.image_dir or output.parent / "images"
    if args.config:
        written += write_papers(args.config, args.published, decodings, output, image_dir)
    else:
        check_decoded(exp_dirs, decodings)
        written += write_results(exp_dirs, decodings, args.plain, output, image_dir)
    print("\n".join(map(str, written)))


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    parser = get_parser()
    args = parser.parse_args(cmd)
    if args.config and not args.output:
        parser.error("--config: give --output, too")
    if args.config and args.plain:
        parser.error("--plain: with --config the plan says which decoding is plain")
    run_main("report", lambda: work(args))


if __name__ == "__main__":
    main()
