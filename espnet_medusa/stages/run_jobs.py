"""Run `-- COMMAND` once for each job, side by side, JOB becoming its number, each with its log.

python -m espnet_medusa.stages.run_jobs JOB=1:4 logdir/stats.JOB.log -- COMMAND ... JOB ...
python -m espnet_medusa.stages.run_jobs --cmd "slurm.pl --mem 4G" JOB=1:4 ...: an array job of Slurm
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from espnet_medusa.bin.command_line import make_main, positive, str2bool
from espnet_medusa.recipe.jobs import GPUS, Failure, Job, describe, parse_range, run, visible_gpus
from espnet_medusa.recipe.progress import JobsProgress
from espnet_medusa.slurm.array_job import ArrayJob
from espnet_medusa.slurm.configuration import PREFIX_HELP, is_slurm, parse_request
from espnet_medusa.slurm.run import refuse_active_jobs, run_array

SHOWN_FAILURES = 3  # with the end of their logs; what ends a hundred jobs is the same in all


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("jobs", help="JOB=FIRST:LAST")
    parser.add_argument("log", help="log file of each job, with JOB")
    parser.add_argument("--cmd", default="", help=PREFIX_HELP)
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


def partial_path(job: Job, partial_file: str) -> Path:
    """Where a job lists what it could not do."""
    return Path(partial_file.replace("JOB", job.name.split()[-1]))


def is_partial(failure: Failure, partial_file: str | None) -> bool:
    """Whether a job that ended by itself says what it left out, and so did the rest."""
    if not partial_file or failure.status is None or failure.status < 0:
        return False
    path = partial_path(failure.job, partial_file)
    return path.is_file() and path.stat().st_size > 0


def run_on_slurm(args: argparse.Namespace, progress: JobsProgress) -> list[Failure]:
    """Run the jobs as an array job of Slurm; says which of them Slurm started again.

    Raises:
        InputError: Slurm refuses it, or the options are not those of slurm.pl.
    """
    request = parse_request(args.cmd)
    if args.most_at_once:
        request = replace(request, most_at_once=args.most_at_once)
    array = ArrayJob(parse_range(args.jobs), tuple(args.command), args.log)
    failures, restarted = run_array(
        array, request, args.on_failure == "stop", lambda where: progress.show(where=where)
    )
    if restarted:
        numbers = ", ".join(map(str, restarted))
        progress.line.print(f"{args.title}: Slurm started again: job {numbers}")
    return failures


def report(failures: Sequence[Failure], args: argparse.Namespace, count: int) -> None:
    """Print how jobs failed, and what to do."""
    for failure in failures[:SHOWN_FAILURES]:
        print(describe(failure), file=sys.stderr)
    for failure in failures[SHOWN_FAILURES:]:
        print(f"{failure.job.name} {failure.ending}: {failure.job.log}", file=sys.stderr)
    kept = "; what is finished is kept" if args.on_failure == "wait" else ""
    print(
        f"{args.title}: {len(failures)} of {count} jobs did not end well; mend what their logs "
        f"name and run the stage again{kept}",
        file=sys.stderr,
    )


def work(args: argparse.Namespace) -> int:
    """Run the jobs; returns the exit status."""
    jobs = make_jobs(args, args.command)
    refuse_active_jobs(jobs[0].log.parent)
    for job in jobs:
        job.log.unlink(missing_ok=True)
        if args.partial_file:
            partial_path(job, args.partial_file).unlink(missing_ok=True)
    progress = JobsProgress(args.title, [job.log for job in jobs], args.total_keys)
    if is_slurm(args.cmd):
        failures = run_on_slurm(args, progress)
    else:
        side_by_side = args.spread_gpus or args.cmd
        most = args.most_at_once or (len(jobs) if side_by_side else os.cpu_count() or 1)
        failures = run(jobs, most, args.on_failure == "stop", progress.show)
    progress.finish()
    failures = [failure for failure in failures if not is_partial(failure, args.partial_file)]
    if failures:
        report(failures, args, len(jobs))
    return 1 if failures else 0


main = make_main("run_jobs", __doc__, add_options, work, runs="COMMAND")


if __name__ == "__main__":
    main()
