"""Fetch a file of a corpus, check it, and unpack it.

    python -m espnet_medusa.stages.download --url URL --path downloads/a.tar.gz \\
        --checksum md5:... --unpack_to downloads

What broke off goes on when the command is given again; a file that is there already and whole is
not fetched again.
"""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.files.archive import unpack
from espnet_medusa.recipe.download import download


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--url", required=True, help="http or https")
    parser.add_argument("--path", type=Path, required=True, help="where the file goes")
    parser.add_argument("--checksum", help="such as md5:<32 digits>; none: not checked")
    parser.add_argument("--unpack_to", type=Path, help="folder; none: not unpacked")


def work(args: argparse.Namespace) -> None:
    """Fetch, and unpack."""
    download(args.url, args.path, args.checksum)
    if args.unpack_to is not None:
        unpack(args.path, args.unpack_to)


main = make_main("download", __doc__, add_options, work)


if __name__ == "__main__":
    main()
