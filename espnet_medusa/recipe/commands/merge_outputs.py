"""Join the outputs of the inference jobs of one test set.

Exit status: 0, all utterances have a result; 3, some failed and are named; 1, an error.
"""

import argparse
import sys
from pathlib import Path

from espnet_medusa.command_line import run_main
from espnet_medusa.recipe.merge import merge_results, merge_statistics_files

SOME_FAILED = 3


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Join the outputs of inference jobs.")
    parser.add_argument("--keys", type=Path, required=True, help="file with all ids, first column")
    parser.add_argument("--log_dir", type=Path, required=True, help="folder of output.<job>")
    parser.add_argument("--output_dir", type=Path, required=True)
    return parser


def work(args: argparse.Namespace) -> int:
    """Join, and name what failed; returns the exit status."""
    merged = merge_results(args.keys, args.log_dir, args.output_dir)
    merge_statistics_files(args.log_dir, args.output_dir)
    total = len(merged.decoded) + len(merged.failed)
    print(f"{args.output_dir}: {len(merged.decoded)} of {total} utterances decoded")
    for utterance, reason in sorted(merged.failed.items()):
        print(f"  not decoded: {utterance}: {reason}", file=sys.stderr)
    return SOME_FAILED if merged.failed else 0


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    args = get_parser().parse_args(cmd)
    run_main("merge_outputs", lambda: work(args))


if __name__ == "__main__":
    main()
