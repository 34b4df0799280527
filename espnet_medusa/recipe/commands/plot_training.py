"""Draw the training curves of an experiment into its images folder."""

import argparse
from pathlib import Path

from espnet_medusa.command_line import run_main
from espnet_medusa.recipe.train_log import read_epochs
from espnet_medusa.report.figures.training import plot_heads, plot_training


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Draw training curves from train.log.")
    parser.add_argument("--exp_dir", type=Path, required=True, help="holds train.log")
    parser.add_argument("--output_dir", type=Path, help="default: EXP_DIR/images")
    return parser


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


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("plot_training", lambda: work(args))


if __name__ == "__main__":
    main()
