"""Make a Kaldi data directory from a CSV file: audio, sentence[, language, regulation-*].

    python -m espnet_medusa.bin.csv_to_data_dir test.csv data/test --language en

Rows that cannot be used go to stdout, one line each; the others are written. The exit status is 1
if any row is bad.
"""

import argparse
import sys
from pathlib import Path

from espnet_medusa.bin.command_line import run_main
from espnet_medusa.kaldi.csv_import import REGULATION, csv_to_data_dir


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv", type=Path, help="audio paths in it are relative to its folder")
    parser.add_argument("data_dir", type=Path, help="directory to write")
    parser.add_argument("--language", help="code or name, for rows that give none")
    return parser


def work(args: argparse.Namespace) -> int:
    """Write the directory; returns the exit status."""
    done = csv_to_data_dir(args.csv, args.data_dir, args.language)
    for problem in done.bad:
        print(problem)
    written = len(done.tables["wav.scp"])
    print(f"{args.data_dir}: {written} utterances, {len(done.bad)} bad rows", file=sys.stderr)
    _note_regulation(args.data_dir, done.regulations)
    return 1 if done.bad else 0


def _note_regulation(data_dir: Path, regulations: set[str]) -> None:
    """Decoding takes one penalty a run."""
    if len(regulations) == 1:
        option = f"--exponential_decay_length_penalty {next(iter(regulations))}"
        print(f"{data_dir}: every regulation is the same: decode with {option}", file=sys.stderr)
    elif regulations:
        print(
            f"{data_dir}: {len(regulations)} different regulations, see {REGULATION}; a decoding "
            "run takes one: split the set to use them",
            file=sys.stderr,
        )


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("csv_to_data_dir", lambda: work(args))


if __name__ == "__main__":
    main()
