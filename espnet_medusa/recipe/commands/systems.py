"""List a recipe's systems: name, configuration, checkpoint, initial weights, options of training.

    python -m espnet_medusa.recipe.commands.systems --base base --heads "linear block_10heads"

One a line, tabs between; initial weights and options may be empty.
"""

import argparse
from pathlib import Path

from espnet_medusa.command_line import run_main
from espnet_medusa.recipe.systems import Checkpoints, plan_systems


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base", default="base", help="the base model")
    parser.add_argument("--heads", default="", help="systems with heads, in one argument")
    parser.add_argument("--conf_dir", type=Path, default=Path("conf"), help="train_<kind>.yaml")
    parser.add_argument("--exp_dir", type=Path, default=Path("exp"), help="experiments")
    parser.add_argument("--base_model", default="", help="checkpoint, instead of the best")
    parser.add_argument("--heads_model", default="", help="likewise, of systems with heads")
    parser.add_argument("--base_start", default="", help="initial weights of the base model")
    return parser


def work(args: argparse.Namespace) -> None:
    """Print the lines."""
    chosen = Checkpoints(args.base_model, args.heads_model, args.base_start)
    for system in plan_systems(args.base, args.heads.split(), args.conf_dir, args.exp_dir, chosen):
        fields = (system.name, system.config, system.checkpoint, system.start, system.options)
        print(*fields, sep="\t")


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("systems", lambda: work(args))


if __name__ == "__main__":
    main()
