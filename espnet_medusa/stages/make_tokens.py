"""Make a token list from text (bpe, char, word) or from a Hugging Face tokenizer."""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import add_fields, make_main
from espnet_medusa.recipe.tokens import TOKEN_TYPES, TokenOptions, make_token_list


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options; their defaults are TokenOptions'."""
    default = TokenOptions(token_type="bpe")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="Kaldi text files")
    parser.add_argument("--token_list", type=Path, required=True, help="file to write")
    parser.add_argument("--token_type", required=True, help=f"one of {', '.join(TOKEN_TYPES)}")
    own = ("nbpe", "bpe_mode", "character_coverage", "input_sentence_size", "cleaner")
    add_fields(parser, default, **dict.fromkeys((*own, "blank", "oov", "sos_eos")))
    parser.add_argument(
        "--non_linguistic_symbols", default="none", help="file with one symbol a line, or none"
    )
    parser.add_argument("--hugging_face_model", help="name or folder of a tokenizer")


def work(args: argparse.Namespace) -> None:
    """Make the list and say where it is."""
    symbols = ()
    if args.non_linguistic_symbols not in ("none", ""):
        symbols = tuple(Path(args.non_linguistic_symbols).read_text(encoding="utf-8").split())
    taken = ("text", "token_list", "non_linguistic_symbols")
    options = {name: value for name, value in vars(args).items() if name not in taken}
    options = TokenOptions(non_linguistic_symbols=symbols, **options)
    count = make_token_list(args.text, args.token_list, options)
    print(f"{args.token_list}: {count} tokens")


main = make_main("make_tokens", __doc__, add_options, work)


if __name__ == "__main__":
    main()
