"""Stage 2: add copies of a training set that are spoken faster and slower.

    python -m espnet_medusa.recipe.commands.perturb_speed --data_dir data/train \\
        --output_dir data/train_sp --factors "0.9 1.0 1.1" --nj 2
"""

import argparse
import sys

from espnet_medusa.command_line import add_fields, make_main, problems_to_stdout
from espnet_medusa.kaldi.audio_writer import AudioOptions
from espnet_medusa.kaldi.perturb import parse_factors, perturb_speed


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--data_dir", required=True, help="wav.scp, text, utt2spk, segments")
    parser.add_argument("--output_dir", required=True, help="written as a whole or not at all")
    parser.add_argument("--factors", default="0.9 1.0 1.1", help="speeds; 1.1 is faster")
    add_fields(
        parser, AudioOptions(), nj="processes", allow_pipes="whether commands in wav.scp may run"
    )


def work(args: argparse.Namespace) -> None:
    """Write the directory, and say how large it is."""
    with problems_to_stdout(f"{args.data_dir}: nothing was written to {args.output_dir}"):
        factors = parse_factors(args.factors)
        n_utterances = perturb_speed(
            args.data_dir, args.output_dir, factors, args.nj, args.allow_pipes
        )
    print(f"{args.output_dir}: {n_utterances} utterances", file=sys.stderr)


main = make_main("perturb_speed", __doc__, add_options, work)


if __name__ == "__main__":
    main()
