"""List a recipe's systems: name, configuration, checkpoint, initial weights, options of training.

    python -m espnet_medusa.stages.systems --base base --heads "linear block_10heads"

One a line, tabs between; initial weights and options may be empty.
"""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.recipe.systems import Checkpoints, plan_systems


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--base", default="base", help="the base model")
    parser.add_argument("--heads", default="", help="systems with heads, in one argument")
    parser.add_argument("--conf_dir", type=Path, default=Path("conf"), help="train_<kind>.yaml")
    parser.add_argument("--exp_dir", type=Path, default=Path("exp"), help="experiments")
    parser.add_argument("--base_model", default="", help="checkpoint, instead of the best")
    parser.add_argument("--heads_model", default="", help="likewise, of systems with heads")
    parser.add_argument("--base_start", default="", help="initial weights of the base model")


def work(args: argparse.Namespace) -> None:
    """Print the lines."""
    chosen = Checkpoints(args.base_model, args.heads_model, args.base_start)
    for system in plan_systems(args.base, args.heads.split(), args.conf_dir, args.exp_dir, chosen):
        fields = (system.name, system.config, system.checkpoint, system.start, system.options)
        print(*fields, sep="\t")


main = make_main("systems", __doc__, add_options, work)


if __name__ == "__main__":
    main()
