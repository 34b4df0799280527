"""Score one decoded test set as ESPnet's stage 13 does: WER, CER and TER folders."""

import argparse
import shlex
from pathlib import Path

from espnet_medusa.bin.command_line import add_fields, make_main
from espnet_medusa.recipe.score import ScoreOptions, score
from espnet_medusa.scoring.box_table import parse_sum


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options; their defaults are ScoreOptions'."""
    parser.add_argument("--data_dir", type=Path, required=True, help="holds text and utt2spk")
    parser.add_argument("--output_dir", type=Path, required=True, help="holds the hypotheses' text")
    add_fields(
        parser,
        ScoreOptions(),
        cleaner="of the references",
        hyp_cleaner="of the hypotheses",
        allow_missing="missing hypotheses count as deletions",
    )
    parser.add_argument("--asr_train_config", type=Path, help="names the experiment's tokenizer")
    parser.add_argument("--bpemodel", type=Path, help="for the token error rate, instead of that")
    parser.add_argument("--non_linguistic_symbols", default="none", help="file, or none")
    parser.add_argument("--sclite", help="path of the real sclite")
    parser.add_argument("--sclite_options", default="", help="such as `-s`: case counts")


def work(args: argparse.Namespace) -> None:
    """Score and print the totals."""
    symbols = args.non_linguistic_symbols
    options = ScoreOptions(
        cleaner=args.cleaner,
        hyp_cleaner=args.hyp_cleaner,
        bpe_model=args.bpemodel,
        asr_train_config=args.asr_train_config,
        non_linguistic_symbols=None if symbols in ("none", "") else Path(symbols),
        allow_missing=args.allow_missing,
        sclite=args.sclite,
        sclite_options=tuple(shlex.split(args.sclite_options)),
    )
    rates = []
    for result in score(args.data_dir, args.output_dir, options):
        rate = result.parent.name.removeprefix("score_").upper()
        rates.append(f"{rate} {parse_sum(result).err}")
    print(f"{args.output_dir}: {', '.join(rates)}")


main = make_main("score", __doc__, add_options, work)


if __name__ == "__main__":
    main()
