"""Check a Kaldi data directory, and mend what can be mended.

    python -m espnet_medusa.recipe.commands.validate_data_dir data/train --fix true

Prints one line for each problem on stdout; exits with 1 if any is left.
"""

import argparse
import sys

from espnet2.utils.types import str2bool

from espnet_medusa.kaldi.data_dir import ValidationOptions, validate_data_dir
from espnet_medusa.kaldi.fix import BACKUP, fix_data_dir
from espnet_medusa.kaldi.problem import DataError


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    defaults = ValidationOptions()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data_dir", help="directory with wav.scp, text, utt2spk, spk2utt")
    parser.add_argument(
        "--fix",
        type=str2bool,
        default=False,
        help="keep the utterances that all tables know, sort, make utt2spk and spk2utt",
    )
    parser.add_argument(
        "--require_text",
        type=str2bool,
        default=defaults.require_text,
        help="whether every utterance needs a transcript",
    )
    parser.add_argument(
        "--allow_pipes",
        type=str2bool,
        default=defaults.allow_pipes,
        help="whether wav.scp may hold commands",
    )
    parser.add_argument(
        "--speaker_order",
        type=str2bool,
        default=defaults.check_speaker_order,
        help="whether sorting by speaker must keep the order of utterances, as Kaldi wants",
    )
    return parser


def main(cmd: list[str] | None = None) -> None:
    """Run the command."""
    args = get_parser().parse_args(cmd)
    if args.fix:
        try:
            report = fix_data_dir(args.data_dir)
        except DataError as error:
            print(error)
            sys.exit(1)
        for problem in report.dropped:
            print(problem)
        made = f"; made {' and '.join(report.generated)}" if report.generated else ""
        print(
            f"{args.data_dir}: kept {report.n_kept} utterances{made}; the old tables are in"
            f" {args.data_dir}/{BACKUP}",
            file=sys.stderr,
        )
    options = ValidationOptions(
        require_text=args.require_text,
        allow_pipes=args.allow_pipes,
        check_speaker_order=args.speaker_order,
    )
    problems = validate_data_dir(args.data_dir, options=options)
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(1)


if __name__ == "__main__":
    main()
