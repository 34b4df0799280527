"""Check a Kaldi data directory, and mend what can be mended.

    python -m espnet_medusa.stages.validate_data_dir data/train --fix true

Prints one line for each problem on stdout; exits with 1 if any is left.
"""

import argparse
import sys

from espnet_medusa.bin.command_line import add_fields, make_main, problems_to_stdout, str2bool
from espnet_medusa.kaldi.data_dir import ValidationOptions, validate_data_dir
from espnet_medusa.kaldi.fix import BACKUP, fix_data_dir


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    defaults = ValidationOptions()
    parser.add_argument("data_dir", help="directory with wav.scp, text, utt2spk, spk2utt")
    parser.add_argument(
        "--fix",
        type=str2bool,
        default=False,
        help="keep the utterances that all tables know, sort, make utt2spk and spk2utt",
    )
    add_fields(
        parser,
        defaults,
        require_text="whether every utterance needs a transcript",
        allow_pipes="whether wav.scp may hold commands",
    )
    parser.add_argument(
        "--speaker_order",
        type=str2bool,
        default=defaults.check_speaker_order,
        help="whether sorting by speaker must keep the order of utterances, as Kaldi wants",
    )


def work(args: argparse.Namespace) -> int:
    """Mend where that was asked for, and print what is wrong; returns the exit status."""
    if args.fix:
        with problems_to_stdout():
            report = fix_data_dir(args.data_dir)
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
    return 1 if problems else 0


main = make_main("validate_data_dir", __doc__, add_options, work)


if __name__ == "__main__":
    main()
