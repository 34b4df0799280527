"""Join data directories, such as a training set of two languages.

    python -m espnet_medusa.recipe.commands.combine_data --data_dirs data/train data/train_de \\
        --languages en de --output_dir data/train_en_de
"""

import argparse
import sys
from pathlib import Path

from espnet_medusa.command_line import run_main
from espnet_medusa.kaldi.combine import combine_data_dirs


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data_dirs", type=Path, nargs="+", required=True, help="to join")
    parser.add_argument("--languages", nargs="+", help="one for each, for utt2lang")
    parser.add_argument("--output_dir", type=Path, required=True, help="directory to write")
    return parser


def work(args: argparse.Namespace) -> None:
    """Write the directory and say how large it is."""
    n_utterances = combine_data_dirs(args.data_dirs, args.output_dir, args.languages)
    print(f"{args.output_dir}: {n_utterances} utterances", file=sys.stderr)


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("combine_data", lambda: work(args))


if __name__ == "__main__":
    main()
