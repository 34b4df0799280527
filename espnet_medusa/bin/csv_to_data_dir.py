"""Make a Kaldi data directory from a CSV file with audio, sentence[, language, regulation-*].

    python -m espnet_medusa.bin.csv_to_data_dir test.csv data/test --language en

Bad rows are printed to stdout, one line each; the other rows are written. The exit status is 1 if
a row is bad.
"""

import argparse
import sys
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.kaldi.csv_import import REGULATION, csv_to_data_dir


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("csv", type=Path, help="CSV file; audio paths are relative to its folder")
    parser.add_argument("data_dir", type=Path, help="directory to write")
    parser.add_argument("--language", help="code or name for rows without a language")


def work(args: argparse.Namespace) -> int:
    done = csv_to_data_dir(args.csv, args.data_dir, args.language)
    for problem in done.bad:
        print(problem)
    written = len(done.tables["wav.scp"])
    print(f"{args.data_dir}: {written} utterances, {len(done.bad)} bad rows", file=sys.stderr)
    if len(done.regulations) == 1:
        option = f"--exponential_decay_length_penalty {next(iter(done.regulations))}"
        print(f"{args.data_dir}: one length penalty for all rows: use {option}", file=sys.stderr)
    elif done.regulations:
        several = f"{len(done.regulations)} length penalties in {REGULATION}; decoding uses one"
        print(f"{args.data_dir}: {several}: split the set by length penalty", file=sys.stderr)
    return 1 if done.bad else 0


main = make_main("csv_to_data_dir", __doc__, add_options, work)

if __name__ == "__main__":
    main()
