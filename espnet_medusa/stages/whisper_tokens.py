"""Write the token list of a Whisper and the folder of its tokenizer; OpenAI's need no network."""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.whisper.text import save_whisper_tokens
from espnet_medusa.whisper.token_types import WHISPER_TYPES


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--whisper_model", required=True, help="hub name, folder or .pt file")
    parser.add_argument("--token_type", required=True, choices=WHISPER_TYPES)
    parser.add_argument("--token_list", type=Path, required=True, help="file to write")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder to write")


def work(args: argparse.Namespace) -> None:
    """Write both, and say how many tokens there are."""
    count = save_whisper_tokens(
        args.whisper_model, args.token_type, args.token_list, args.tokenizer
    )
    print(f"{args.token_list}: {count} tokens")


main = make_main("whisper_tokens", __doc__, add_options, work)


if __name__ == "__main__":
    main()
