"""Pack a model for --model_tag, as ESPnet does, with all that its configs name (stage 14)."""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.inference.pack_model import pack_model
from espnet_medusa.inference.packed_model import CONFIGS, ROLES, WEIGHTS


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--asr_train_config", type=Path, required=True)
    parser.add_argument("--asr_model_file", type=Path, required=True)
    parser.add_argument("--lm_train_config", type=Path)
    parser.add_argument("--lm_file", type=Path)
    parser.add_argument(
        "--option", type=Path, action="append", default=[], help="a file or folder beside these"
    )
    parser.add_argument("--outpath", type=Path, required=True, help="archive to write")


def work(args: argparse.Namespace) -> None:
    """Pack.

    Raises:
        InputError: A file is missing, or is one that cannot be packed.
    """
    given = {role: getattr(args, role, None) for role in (*ROLES[CONFIGS], *ROLES[WEIGHTS])}
    model = {role: file for role, file in given.items() if file is not None}
    pack_model(model, args.option, args.outpath)


main = make_main("pack_model", __doc__, add_options, work)


if __name__ == "__main__":
    main()
