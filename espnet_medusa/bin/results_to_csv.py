"""Write decoding results next to the rows of the CSV file of the audio.

    python -m espnet_medusa.bin.results_to_csv test.csv exp/asr/decode/test results.csv

Every row is written, with the columns prediction, wer and cer. A row without a hypothesis has the
reason in the column error and on stdout, and the exit status is 1.
"""

import argparse
import sys
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.kaldi.csv_results import write_csv_results
from espnet_medusa.recipe.tokens import make_cleaner


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("csv", type=Path, help="CSV file that csv_to_data_dir read")
    add("result_dir", type=Path, help="folder with the set's decoded text")
    add("output", type=Path, help="CSV file to write")
    cleaner = "cleaner of sentence and prediction, such as whisper_en"
    add("--cleaner", default="none", help=cleaner)


def work(args: argparse.Namespace) -> int:
    clean = make_cleaner(args.cleaner)
    results = write_csv_results(args.csv, args.result_dir, args.output, clean)
    for line, reason in results.missing.items():
        print(f"{args.csv}: line {line}: no hypothesis: {reason}")
    rates = " ".join(f"{name} {100 * rate:.2f}%" for name, rate in results.error_rates().items())
    counts = f"{results.rows} rows, {len(results.missing)} without hypothesis"
    print(f"{args.output}: {counts} {rates}", file=sys.stderr)
    return 1 if results.missing else 0


main = make_main("results_to_csv", __doc__, add_options, work)

if __name__ == "__main__":
    main()
