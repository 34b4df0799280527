"""Draw acceptance per head, tokens per call and, with --plain, speedup."""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.report.figures.decoding import (
    plot_acceptance,
    plot_speedup,
    plot_tokens_per_call,
)
from espnet_medusa.report.measures.decodings import find_decodings, find_plains


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--exp_dirs", type=Path, nargs="+", required=True)
    parser.add_argument("--plain", type=Path, help="EXP_DIR/INFERENCE_TAG to compare with")
    parser.add_argument("--output_dir", type=Path, required=True)


def work(args: argparse.Namespace) -> None:
    """Draw for each test set, and say where the figures are."""
    decodings = find_decodings(args.exp_dirs)
    figures = []
    for test_set, plain in find_plains(decodings, args.plain).items():
        same = [item for item in decodings if item.test_set == test_set]
        figures.append(plot_acceptance(same, args.output_dir / f"acceptance_{test_set}.png"))
        figures.append(
            plot_tokens_per_call(same, args.output_dir / f"tokens_per_call_{test_set}.png")
        )
        if plain is not None:
            path = args.output_dir / f"speedup_{test_set}.png"
            figures.append(plot_speedup(same, plain, path))
    print("\n".join(str(path) for path in figures if path) or "no decoding statistics to draw")


main = make_main("plot_decoding", __doc__, add_options, work)


if __name__ == "__main__":
    main()
