"""Draw the training curves of an experiment, from its train.log, into its images folder."""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.report.figures.training import plot_experiment


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--exp_dir", type=Path, required=True, help="holds train.log")


def work(args: argparse.Namespace) -> None:
    """Draw, and say where the figures are."""
    print("\n".join(map(str, plot_experiment(args.exp_dir))))


main = make_main("plot_training", __doc__, add_options, work)


if __name__ == "__main__":
    main()
