"""Stage 3: turn a Kaldi data directory into audio of one rate and one channel.

    python -m espnet_medusa.stages.format_data --data_dir data/train \\
        --output_dir dump/raw/train --fs 16k --audio_format flac.ark --nj 2

Problems go to stdout, one line each. The exit status is 1 if nothing was written.
"""

import argparse
import sys

from espnet2.utils.types import float_or_none, humanfriendly_parse_size_or_none

from espnet_medusa.bin.command_line import add_fields, make_main, problems_to_stdout
from espnet_medusa.kaldi.audio_writer import AUDIO_FORMATS, AudioOptions
from espnet_medusa.kaldi.format import BAD_UTTERANCES, ON_BAD, FormatOptions, format_data_dir


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    audio, options = AudioOptions(), FormatOptions()
    parser.add_argument("--data_dir", required=True, help="wav.scp, text, utt2spk, segments")
    parser.add_argument("--output_dir", required=True, help="written as a whole or not at all")
    parser.add_argument(
        "--fs", type=humanfriendly_parse_size_or_none, default=audio.fs, help="rate in Hz or 16k"
    )
    parser.add_argument("--audio_format", choices=AUDIO_FORMATS, default=audio.audio_format)
    add_fields(parser, audio, nj="processes", allow_pipes="whether commands in wav.scp may run")
    parser.add_argument(
        "--on_bad",
        choices=ON_BAD,
        default=options.on_bad,
        help="stop: write nothing if an utterance is bad (training sets); "
        f"skip: write the others, list the bad ones in {BAD_UTTERANCES} (test sets)",
    )
    parser.add_argument(
        "--max_duration",
        type=float_or_none,
        default=audio.max_duration_s,
        help="seconds; none: any",
    )
    parser.add_argument(
        "--min_duration", type=float, default=audio.min_duration_s, help="seconds, one frame"
    )
    add_fields(
        parser,
        options,
        require_text="whether every utterance needs a transcript",
        allow_empty_text="whether a transcript may be empty",
    )


def work(args: argparse.Namespace) -> None:
    """Write the directory; name bad utterances."""
    with problems_to_stdout(f"{args.data_dir}: nothing was written to {args.output_dir}"):
        audio = AudioOptions(
            fs=args.fs,
            audio_format=args.audio_format,
            nj=args.nj,
            allow_pipes=args.allow_pipes,
            max_duration_s=args.max_duration,
            min_duration_s=args.min_duration,
        )
        options = FormatOptions(audio, args.on_bad, args.require_text, args.allow_empty_text)
        report = format_data_dir(args.data_dir, args.output_dir, options)
    for problem in report.bad:
        print(problem)
    state = "was complete already" if report.was_complete else "written"
    print(
        f"{args.output_dir}: {report.n_written} utterances {state}, {len(report.bad)} bad",
        file=sys.stderr,
    )


main = make_main("format_data", __doc__, add_options, work)


if __name__ == "__main__":
    main()
