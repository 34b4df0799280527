"""Join data directories, such as a training set of two languages.

    python -m espnet_medusa.stages.combine_data --data_dirs data/train data/train_de \\
        --languages en de --output_dir data/train_en_de
"""

import argparse
import sys
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.kaldi.combine import combine_data_dirs


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--data_dirs", type=Path, nargs="+", required=True, help="to join")
    parser.add_argument("--languages", nargs="+", help="one for each, for utt2lang")
    parser.add_argument("--output_dir", type=Path, required=True, help="directory to write")


def work(args: argparse.Namespace) -> None:
    """Write the directory and say how large it is."""
    n_utterances = combine_data_dirs(args.data_dirs, args.output_dir, args.languages)
    print(f"{args.output_dir}: {n_utterances} utterances", file=sys.stderr)


main = make_main("combine_data", __doc__, add_options, work)


if __name__ == "__main__":
    main()
