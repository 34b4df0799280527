"""Run `-- COMMAND` once for each job, side by side, JOB becoming its number, each with its log.

python -m espnet_medusa.stages.run_jobs JOB=1:4 logdir/stats.JOB.log -- COMMAND ... JOB ...
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

from espnet_medusa.bin.command_line import make_main, positive, str2bool
from espnet_medusa.recipe.jobs import GPUS, Failure, Job, describe, parse_range, run, visible_gpus
from espnet_medusa.recipe.progress import JobsProgress


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("jobs", help="JOB=FIRST:LAST")
    parser.add_argument("log", help="log file of each job, with JOB")
    parser.add_argument("--cmd", default="", help="put before the command, such as `srun -n 1`")
    parser.add_argument(
        "--most_at_once", type=positive, help="jobs side by side; all with --cmd, else one a core"
    )
    parser.add_argument(
        "--on_failure", choices=("stop", "wait"), default="stop", help="what the other jobs do"
    )
    parser.add_argument(
        "--partial_file",
        help="file name with JOB: a failed job that wrote this file finished all the same, "
        "and lists there what it could not do",
    )
    parser.add_argument("--spread_gpus", type=str2bool, default=False, help="one GPU for each job")
    parser.add_argument("--title", default="jobs", help="shown in the progress line")
    parser.add_argument("--total_keys", type=int, default=0, help="utterances of all jobs together")


def make_jobs(args: argparse.Namespace, command: list[str]) -> list[Job]:
    """Build the jobs, JOB replaced by each number.

    Raises:
        ValueError: Bad range, a log name without JOB for many jobs, or no visible GPU.
    """
    numbers = parse_range(args.jobs)
    if len(numbers) > 1 and "JOB" not in args.log:
        raise ValueError(f"{args.log}: the name of the log must contain JOB")
    gpus = visible_gpus(os.environ) if args.spread_gpus and not args.cmd else []
    jobs = []
    for index, number in enumerate(numbers):
        words = [word.replace("JOB", str(number)) for word in command]
        jobs.append(
            Job(
                name=f"job {number}",
                command=(*shlex.split(args.cmd), *words),
                log=Path(args.log.replace("JOB", str(number))),
                environment={GPUS: gpus[index % len(gpus)]} if gpus else {},
            )
        )
    return jobs


def is_partial(failure: Failure, partial_file: str | None) -> bool:
    """Whether a failed job says itself what it left out, and so did the rest."""
    if not partial_file:
        return False
    path = Path(partial_file.replace("JOB", failure.job.name.split()[-1]))
    return path.is_file() and path.stat().st_size > 0


def work(args: argparse.Namespace) -> int:
    """Run the jobs; returns the exit status."""
    jobs = make_jobs(args, args.command)
    for job in jobs:
        job.log.unlink(missing_ok=True)
    side_by_side = args.spread_gpus or args.cmd
    most = args.most_at_once or (len(jobs) if side_by_side else os.cpu_count() or 1)
    progress = JobsProgress(args.title, [job.log for job in jobs], args.total_keys)
    failures = run(jobs, most, args.on_failure == "stop", progress.show)
    progress.finish()
    failures = [failure for failure in failures if not is_partial(failure, args.partial_file)]
    for failure in failures:
        print(describe(failure), file=sys.stderr)
    return 1 if failures else 0


main = make_main("run_jobs", __doc__, add_options, work, runs="COMMAND")


if __name__ == "__main__":
    main()
