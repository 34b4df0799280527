"""Stage 4: drop training utterances that are too long, too short or have no text.

    python -m espnet_medusa.stages.filter_data --input_dir dump/raw/org/train \\
        --output_dir dump/raw/train --min_wav_duration 0.1 --max_wav_duration 20 --fs 16k
"""

import argparse
from collections.abc import Mapping

from espnet2.utils.types import humanfriendly_parse_size_or_none

from espnet_medusa.bin.command_line import add_fields, make_main, problems_to_stdout
from espnet_medusa.kaldi.dump_dir import DROPPED_UTTERANCES, FilterOptions, filter_data_dir

N_SHOWN = 5


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    options = FilterOptions()
    parser.add_argument("--input_dir", required=True, help="what format_data wrote")
    parser.add_argument("--output_dir", required=True, help="written as a whole or not at all")
    add_fields(parser, options, min_wav_duration="seconds", max_wav_duration="seconds")
    parser.add_argument(
        "--fs", type=humanfriendly_parse_size_or_none, default=options.fs, help="rate in Hz or 16k"
    )
    add_fields(parser, options, drop_empty_text="whether utterances without words go")


def work(args: argparse.Namespace) -> None:
    """Write the directory, and say what was dropped."""
    with problems_to_stdout():
        options = FilterOptions(
            args.min_wav_duration, args.max_wav_duration, args.fs, args.drop_empty_text
        )
        n_kept, dropped = filter_data_dir(args.input_dir, args.output_dir, options)
    _report(args.output_dir, n_kept, dropped)


def _report(output_dir: str, n_kept: int, dropped: Mapping[str, str]) -> None:
    print(f"{output_dir}: kept {n_kept} utterances, dropped {len(dropped)}")
    by_reason: dict[str, list[str]] = {}
    for key, reason in sorted(dropped.items()):
        by_reason.setdefault(reason.split(":")[0], []).append(key)
    for reason, keys in by_reason.items():
        more = ", ..." if len(keys) > N_SHOWN else ""
        print(f"  {reason}: {len(keys)} ({', '.join(keys[:N_SHOWN])}{more})")
    if dropped:
        print(f"  all of them: {output_dir}/{DROPPED_UTTERANCES}")


main = make_main("filter_data", __doc__, add_options, work)


if __name__ == "__main__":
    main()
