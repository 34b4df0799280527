"""Run `-- COMMAND`, ESPnet's training: one process, one per GPU, or several of one CPU thread.

python -m espnet_medusa.stages.run_training --log exp/asr_x/train.log --nj 2 -- \\
    python3 -m espnet_medusa.bin.asr_train --ngpu 0 ...

With --max_restarts 3 torchrun starts the processes, and where one dies all of them again, up to
three times; training goes on behind the last epoch. With --cmd "slurm.pl --gpu 4 --num_nodes 2" it
is a job of Slurm, whose processes torchrun starts, one for each GPU, or --nj on each node without.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from espnet_medusa.bin.command_line import make_main, positive, whole_number
from espnet_medusa.recipe.jobs import Failure, Job, describe, run
from espnet_medusa.recipe.progress import TrainingWatch
from espnet_medusa.recipe.torchrun import (
    espnet_options,
    launch_here,
    launch_under_srun,
    without_report,
)
from espnet_medusa.slurm.array_job import ArrayJob
from espnet_medusa.slurm.configuration import PREFIX_HELP, Request, is_slurm, parse_request
from espnet_medusa.slurm.run import refuse_active_jobs, run_array


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--log", type=Path, required=True, help="a resumed run adds to it")
    parser.add_argument(
        "--nj", type=positive, default=1, help="CPU processes that share each batch (--ngpu 0)"
    )
    parser.add_argument(
        "--ngpu", type=whole_number, default=0, help="GPUs of this machine, as COMMAND has them"
    )
    parser.add_argument(
        "--max_restarts",
        type=whole_number,
        default=0,
        help="times that all processes are started again where one dies",
    )
    parser.add_argument("--cmd", default="", help=PREFIX_HELP)


def rank_options(rank: int, processes: int, meeting_file: Path) -> list[str]:
    """ESPnet's options for one of several CPU processes that average their gradients."""
    return [
        *("--multiprocessing_distributed", "false", "--dist_backend", "gloo"),
        *("--dist_world_size", str(processes), "--dist_rank", str(rank)),
        *("--dist_init_method", meeting_file.absolute().as_uri()),
    ]


def make_jobs(args: argparse.Namespace, command: list[str], meeting_file: Path) -> list[Job]:
    """Build one job for each process, or torchrun's; rank 0 writes the log that users know."""
    # One thread each: two processes of one thread outrun one process of two threads.
    environment = {"OMP_NUM_THREADS": "1"} if args.nj > 1 else {}
    if args.max_restarts:
        start = launch_here(python_of(command), args.ngpu or args.nj, args.max_restarts)
        command = [*start, *command, *espnet_options(args.ngpu)]
    command = [*shlex.split(args.cmd), *command]
    if args.nj == 1 or args.max_restarts:
        return [Job("training", tuple(command), args.log, environment, append=True)]
    return [
        Job(
            name=f"training process {rank}",
            command=(*command, *rank_options(rank, args.nj, meeting_file)),
            log=args.log if rank == 0 else args.log.with_suffix(f".rank{rank}.log"),
            environment=environment,
            append=rank == 0,
        )
        for rank in range(args.nj)
    ]


def python_of(command: Sequence[str]) -> str:
    """The interpreter that a command names, whose torch launches it."""
    return command[0] if command[1:2] == ["-m"] else "python3"


def make_array(args: argparse.Namespace, command: Sequence[str], request: Request) -> ArrayJob:
    """The training as a job of Slurm, of one process or by torchrun."""
    processes = request.gpus or args.nj
    start, options = "", []
    if processes * request.nodes > 1 or args.max_restarts:
        python = python_of(command)
        start = launch_under_srun(python, request.nodes, processes, args.max_restarts)
        options = espnet_options(request.gpus)
    command = (*command, *options)
    return ArrayJob(range(1, 2), command, str(args.log), start, append=True, placeholder=None)


def train_on_slurm(args: argparse.Namespace, watch: TrainingWatch) -> list[Failure]:
    """Train in a job of Slurm.

    Raises:
        InputError: Slurm refuses it, or the options are not those of slurm.pl.
    """
    request = parse_request(args.cmd, threads=args.nj)
    array = make_array(args, args.command, request)
    failures, restarted = run_array(array, request, True, lambda where: watch.show(where=where))
    if restarted:
        watch.line.print("training: Slurm started it again; it went on behind the last epoch")
    return [replace(failure, job=replace(failure.job, name="training")) for failure in failures]


def train_here(args: argparse.Namespace, watch: TrainingWatch) -> list[Failure]:
    """Train in processes of this machine, or each behind a command's prefix."""
    # The processes meet in a file that must be new: an old one makes them wait for ever. It lies
    # with the log, where the hosts of a cluster see it too.
    with tempfile.TemporaryDirectory(prefix=".meeting", dir=args.log.parent) as folder:
        jobs = make_jobs(args, args.command, Path(folder) / "processes")
        return run(jobs, len(jobs), stop_on_failure=True, watch=watch.show)


def work(args: argparse.Namespace) -> int:
    """Train; returns the exit status."""
    args.log.parent.mkdir(parents=True, exist_ok=True)
    refuse_active_jobs(args.log.parent)
    watch = TrainingWatch(args.log)
    failures = (train_on_slurm if is_slurm(args.cmd) else train_here)(args, watch)
    watch.finish()
    for failure in failures:
        print(describe(failure, without_report), file=sys.stderr)
    if failures:
        print(
            "training: mend what the log names and run the stage again; finished epochs are kept",
            file=sys.stderr,
        )
    return 1 if failures else 0


main = make_main("run_training", __doc__, add_options, work, runs="COMMAND")


if __name__ == "__main__":
    main()
