"""Split lists of utterances over jobs and print the number of jobs.

python -m espnet_medusa.recipe.commands.split_keys \\
    --nj 4 --keys wav.scp --output logdir/keys.JOB.scp
"""

import argparse

from espnet_medusa.command_line import positive, run_main
from espnet_medusa.recipe.split import split_keys


def get_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description="Split lists of utterances over jobs.")
    parser.add_argument("--nj", type=positive, required=True, help="most jobs")
    parser.add_argument("--keys", action="append", required=True, help="file to split, repeatable")
    parser.add_argument(
        "--output", action="append", required=True, help="name of its parts, with JOB; repeatable"
    )
    parser.add_argument(
        "--work_dir", help="folder of the jobs' outputs, emptied when the split has changed"
    )
    return parser


def main(cmd: list[str] | None = None) -> None:
    """Command-line entry."""
    parser = get_parser()
    args = parser.parse_args(cmd)
    if len(args.keys) != len(args.output):
        parser.error("give one --output for each --keys")
    run_main(
        "split_keys",
        lambda: print(split_keys(args.keys, args.output, args.nj, args.work_dir)),
    )


if __name__ == "__main__":
    main()
