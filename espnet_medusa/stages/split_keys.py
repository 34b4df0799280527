"""Split lists of utterances over jobs and print the number of jobs.

python -m espnet_medusa.stages.split_keys \\
    --nj 4 --keys wav.scp --output logdir/keys.JOB.scp
"""

import argparse
from pathlib import Path

from espnet_medusa.bin.command_line import make_main, positive, str2bool
from espnet_medusa.errors import InputError
from espnet_medusa.recipe.split import split_keys
from espnet_medusa.slurm.run import refuse_active_jobs


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--nj", type=positive, required=True, help="most jobs")
    parser.add_argument("--keys", action="append", required=True, help="file to split, repeatable")
    parser.add_argument(
        "--output", action="append", required=True, help="name of its parts, with JOB; repeatable"
    )
    parser.add_argument(
        "--work_dir", help="folder of the jobs' outputs, emptied when the split has changed"
    )
    parser.add_argument("--resume", type=str2bool, default=True, help="false: emptied anyhow")


def work(args: argparse.Namespace) -> None:
    """Split, and print the number of jobs.

    Raises:
        InputError: A file has no name for its parts, or a name has no file, or jobs of Slurm work
            in the folder.
    """
    if len(args.keys) != len(args.output):
        raise InputError("give one --output for each --keys")
    if args.work_dir is not None:
        refuse_active_jobs(Path(args.work_dir))
    print(split_keys(args.keys, args.output, args.nj, args.work_dir, args.resume))


main = make_main("split_keys", __doc__, add_options, work)


if __name__ == "__main__":
    main()
