"""Draw the training curves of an experiment, from its train.log, into its images folder."""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.recipe.train_log import read_epochs
from espnet_medusa.report.figures.training import plot_heads, plot_training


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--exp_dir", type=Path, required=True, help="holds train.log")
    parser.add_argument("--output_dir", type=Path, help="default: EXP_DIR/images")


def work(args: argparse.Namespace) -> None:
    """Draw, and say where the figures are."""
    output_dir = args.output_dir or args.exp_dir / "images"
    epochs = read_epochs(args.exp_dir / "train.log")
    name = args.exp_dir.name
    figures = [
        plot_training(epochs, name, output_dir / "training.png"),
        plot_heads(epochs, name, output_dir / "training_heads.png"),
    ]
    print("\n".join(str(path) for path in figures if path))


main = make_main("plot_training", __doc__, add_options, work)


if __name__ == "__main__":
    main()
