"""Join the outputs of the inference jobs of one test set.

Exit status: 0, all utterances have a result; 3, some failed and are named; 1, an error.
"""

import argparse
import sys
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.recipe.merge import merge_results, merge_segments, merge_statistics_files

SOME_FAILED = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--keys", type=Path, required=True, help="file with all ids, first column")
    parser.add_argument("--log_dir", type=Path, required=True, help="folder of output.<job>")
    parser.add_argument("--output_dir", type=Path, required=True)


def work(args: argparse.Namespace) -> int:
    """Join, and name what failed; returns the exit status."""
    merged = merge_results(args.keys, args.log_dir, args.output_dir)
    merge_statistics_files(args.log_dir, args.output_dir)
    merge_segments(args.log_dir, args.output_dir)
    total = len(merged.decoded) + len(merged.failed)
    print(f"{args.output_dir}: {len(merged.decoded)} of {total} utterances decoded")
    for utterance, reason in sorted(merged.failed.items()):
        print(f"  not decoded: {utterance}: {reason}", file=sys.stderr)
    return SOME_FAILED if merged.failed else 0


main = make_main("merge_outputs", __doc__, add_options, work)


if __name__ == "__main__":
    main()
