"""Write RESULTS.md, and decoding.json where decoding statistics exist."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.report.measures.decodings import find_decodings
from espnet_medusa.report.tables.comparison import compare_all, comparison_markdown
from espnet_medusa.report.tables.error_rates import results_markdown


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--exp_dirs", type=Path, nargs="+", required=True, help="such as exp/asr_base"
    )
    parser.add_argument(
        "--plain",
        type=Path,
        help="EXP_DIR/INFERENCE_TAG that the others are compared with; "
        "the tag's `_asr_model_...` may be left out",
    )
    parser.add_argument("--output", type=Path, required=True, help="RESULTS.md to write")


def work(args: argparse.Namespace) -> None:
    """Write the files and say where they are.

    Raises:
        ValueError: An experiment is not there, or a report cannot be read.
    """
    for exp_dir in args.exp_dirs:
        if not exp_dir.is_dir():
            raise ValueError(f"--exp_dirs {exp_dir}: no such folder")
    rows = compare_all(find_decodings(args.exp_dirs), args.plain)
    text = results_markdown(args.exp_dirs, [comparison_markdown(rows)])
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text, encoding="utf-8")
    print(args.output)
    if rows:
        table = args.output.with_name("decoding.json")
        rows = [asdict(row) for row in rows]
        table.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        print(table)


main = make_main("results", __doc__, add_options, work)


if __name__ == "__main__":
    main()
