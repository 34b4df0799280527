"""Run commands as parallel processes, or as jobs of Slurm; split a stage's input over them."""

import argparse
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from espnet_medusa.data.command_line import SOME_FAILED, positive, str2bool
from espnet_medusa.data.errors import InputError
from espnet_medusa.recipes import jobs
from espnet_medusa.recipes.jobs import Job
from espnet_medusa.recipes.log_progress import JobsProgress, LogFollower
from espnet_medusa.recipes.slurm.array_job import ArrayJob
from espnet_medusa.recipes.slurm.configuration import PREFIX_HELP, is_slurm, parse_request
from espnet_medusa.recipes.slurm.run import refuse_active_jobs, run_array
from espnet_medusa.recipes.stages import Command

MAX_SHOWN_LOGS = 3  # jobs mostly fail for the same reason


def split_keys(parser: argparse.ArgumentParser) -> Command:
    """Split lists of utterances over jobs and print the number of jobs."""
    from espnet_medusa.recipes.job_files import split_keys

    add = parser.add_argument
    add("--nj", type=positive, required=True, help="maximum number of jobs")
    add("--keys", action="append", required=True, help="file to split, repeatable")
    add("--output", action="append", required=True, help="name of its parts, with JOB; repeatable")
    add("--work_dir", help="folder of the jobs' outputs; another split keeps journals only")
    add("--resume", type=str2bool, default=True, help="false: always empty --work_dir")

    args = yield
    if len(args.keys) != len(args.output):
        raise InputError("give one --output for each --keys")
    if args.work_dir is not None:
        refuse_active_jobs(Path(args.work_dir))
    count, note = split_keys(args.keys, args.output, args.nj, args.work_dir, args.resume)
    if note:
        print(note, file=sys.stderr)
    print(count)


def run_command(parser: argparse.ArgumentParser) -> Command:
    """Run `-- COMMAND` once, here or in a Slurm job; print its output, exit with its status."""
    parser.add_argument("--cmd", default="", help=PREFIX_HELP)
    parser.add_argument("--log", required=True, help="log file of the job")
    args = yield
    if is_slurm(args.cmd):
        return _run_command_on_slurm(args)
    refuse_active_jobs(Path(args.log).parent)
    with jobs.interruptible():
        process = subprocess.Popen([*shlex.split(args.cmd), *args.command], start_new_session=True)
        try:
            status = process.wait()
        except BaseException:  # such as an interruption
            jobs.stop([process])
            raise
    return jobs.shell_status(status)


def _run_command_on_slurm(args: argparse.Namespace) -> int:
    array = ArrayJob(range(1, 2), tuple(args.command), args.log, placeholder=None)
    array.log_of(1).unlink(missing_ok=True)
    follower = LogFollower(args.log)

    def show(summary: str = "") -> None:
        for line in follower.new_lines():
            print(line, flush=True)

    failures, _ = run_array(array, parse_request(args.cmd), True, show)
    show()
    if not failures:
        return 0
    [failure] = failures
    print(f"{array.name} {failure.ending}: {args.log}", file=sys.stderr)
    return jobs.shell_status(failure.status or 1)


def run_jobs(parser: argparse.ArgumentParser) -> Command:
    """Run `-- COMMAND` once for each job, in parallel; JOB becomes its number.

    python -m espnet_medusa.bin.stage run_jobs JOB=1:4 logdir/x.JOB.log -- COMMAND ... JOB ...
    """
    add = parser.add_argument
    add("jobs", help="JOB=FIRST:LAST")
    add("log", help="log file of each job, with JOB")
    add("--cmd", default="", help=PREFIX_HELP)
    add("--most_at_once", type=positive, help="maximum parallel jobs; default: all with --cmd or "
        "--spread_gpus, else one per core")  # fmt: skip
    on_failure = "what to do with the other jobs when one fails; with wait, status 3 is no failure"
    add("--on_failure", choices=("stop", "wait"), default="stop", help=on_failure)
    add("--spread_gpus", type=str2bool, default=False, help="one GPU for each job")
    add("--title", default="jobs", help="shown in the progress line")
    add("--total_keys", type=int, default=0, help="utterances of all jobs together")
    args = yield
    processes = _make_jobs(args)
    refuse_active_jobs(processes[0].log.parent)
    for job in processes:
        job.log.unlink(missing_ok=True)
    progress = JobsProgress(args.title, [job.log for job in processes], args.total_keys)
    if is_slurm(args.cmd):
        request = parse_request(args.cmd)
        if args.most_at_once:
            request = replace(request, most_at_once=args.most_at_once)
        array = ArrayJob(jobs.parse_range(args.jobs), tuple(args.command), args.log)
        failures, restarted = run_array(array, request, args.on_failure == "stop", progress.show)
        if restarted:
            numbers = ", ".join(map(str, restarted))
            progress.line.print(f"{args.title}: Slurm restarted job {numbers}")
    else:
        default = len(processes) if args.spread_gpus or args.cmd else os.cpu_count() or 1
        most = args.most_at_once or default
        failures = jobs.run(processes, most, args.on_failure == "stop", progress.show)
    progress.show(last=True)
    if args.on_failure == "wait":  # such a job has listed utterances that failed
        failures = [failure for failure in failures if failure.status != SOME_FAILED]
    for failure in failures[:MAX_SHOWN_LOGS]:
        print(jobs.describe(failure), file=sys.stderr)
    for failure in failures[MAX_SHOWN_LOGS:]:
        print(f"{failure.job.name} {failure.ending}: {failure.job.log}", file=sys.stderr)
    if failures:
        finished = "; finished work is kept" if args.on_failure == "wait" else ""
        remedy = f"correct what their logs name and run the stage again{finished}"
        counts = f"{len(failures)} of {len(processes)} jobs failed"
        print(f"{args.title}: {counts}; {remedy}", file=sys.stderr)
    return 1 if failures else 0


def _make_jobs(args: argparse.Namespace) -> list[Job]:
    numbers = jobs.parse_range(args.jobs)
    if len(numbers) > 1 and "JOB" not in args.log:
        raise ValueError(f"{args.log}: the name of the log must contain JOB")
    gpus = jobs.visible_gpus(os.environ) if args.spread_gpus and not args.cmd else []
    prefix = shlex.split(args.cmd)
    return [
        Job(
            name=f"job {number}",
            command=(*prefix, *(word.replace("JOB", str(number)) for word in args.command)),
            log=Path(args.log.replace("JOB", str(number))),
            environment={jobs.GPUS: gpus[index % len(gpus)]} if gpus else {},
        )
        for index, number in enumerate(numbers)
    ]
