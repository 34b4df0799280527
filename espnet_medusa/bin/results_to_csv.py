"""Write decoding's results beside the rows of the CSV file that they come from.

    python -m espnet_medusa.bin.results_to_csv test.csv exp/asr/decode/test results.csv

Every row is written, with prediction, wer and cer; one without a hypothesis has its reason in
the column error and on stdout, and makes the exit status 1.
"""

import argparse
import sys
from pathlib import Path

from espnet_medusa.bin.command_line import run_main
from espnet_medusa.kaldi.csv_results import write_csv_results
from espnet_medusa.recipe.tokens import make_cleaner


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv", type=Path, help="what csv_to_data_dir read")
    parser.add_argument("result_dir", type=Path, help="holds the merged text of the set")
    parser.add_argument("output", type=Path, help="CSV file to write")
    parser.add_argument(
        "--cleaner", default="none", help="of sentence and prediction, such as whisper_en"
    )
    return parser


def work(args: argparse.Namespace) -> int:
    """Write the file; returns the exit status."""
    clean = make_cleaner(args.cleaner)
    results = write_csv_results(args.csv, args.result_dir, args.output, clean)
    for line, reason in results.missing.items():
        print(f"{args.csv}: line {line}: no hypothesis: {reason}")
    rates = " ".join(f"{name} {100 * rate:.2f}%" for name, rate in results.error_rates().items())
    print(
        f"{args.output}: {results.rows} rows, {len(results.missing)} without hypothesis {rates}",
        file=sys.stderr,
    )
    return 1 if results.missing else 0


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("results_to_csv", lambda: work(args))


if __name__ == "__main__":
    main()
