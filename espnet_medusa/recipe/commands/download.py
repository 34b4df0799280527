"""Fetch a file of a corpus, check it, and unpack it.

    python -m espnet_medusa.recipe.commands.download --url URL --path downloads/a.tar.gz \\
        --checksum md5:... --unpack_to downloads

What broke off goes on when the command is given again; a file that is there already and whole is
not fetched again.
"""

import argparse
from pathlib import Path

from espnet_medusa.command_line import run_main
from espnet_medusa.recipe.download import download, unpack


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", required=True, help="http or https")
    parser.add_argument("--path", type=Path, required=True, help="where the file goes")
    parser.add_argument("--checksum", help="such as md5:<32 digits>; none: not checked")
    parser.add_argument("--unpack_to", type=Path, help="folder; none: not unpacked")
    return parser


def main(cmd: list[str] | None = None) -> None:
    """Run the command."""
    args = get_parser().parse_args(cmd)

    def work() -> None:
        download(args.url, args.path, args.checksum)
        if args.unpack_to is not None:
            unpack(args.path, args.unpack_to)

    run_main("download", work)


if __name__ == "__main__":
    main()
