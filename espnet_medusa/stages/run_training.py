"""Run `-- COMMAND`, ESPnet's training: one process, one per GPU, or several of one CPU thread.

python -m espnet_medusa.stages.run_training --log exp/asr_x/train.log --nj 2 -- \\
    python3 -m espnet_medusa.bin.asr_train --ngpu 0 ...
"""

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from espnet_medusa.bin.command_line import make_main, positive
from espnet_medusa.recipe.jobs import Job, describe, run
from espnet_medusa.recipe.progress import TrainingWatch


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--log", type=Path, required=True, help="a resumed run adds to it")
    parser.add_argument(
        "--nj", type=positive, default=1, help="CPU processes that share each batch (--ngpu 0)"
    )
    parser.add_argument("--cmd", default="", help="put before the command, such as `srun -n 1`")


def rank_options(rank: int, processes: int, meeting_file: Path) -> list[str]:
    """ESPnet's options for one of several CPU processes that average their gradients."""
    return [
        *("--multiprocessing_distributed", "false", "--dist_backend", "gloo"),
        *("--dist_world_size", str(processes), "--dist_rank", str(rank)),
        *("--dist_init_method", meeting_file.absolute().as_uri()),
    ]


def make_jobs(args: argparse.Namespace, command: list[str], meeting_file: Path) -> list[Job]:
    """Build one job for each process; rank 0 writes the log that users know."""
    command = [*shlex.split(args.cmd), *command]
    if args.nj == 1:
        return [Job("training", tuple(command), args.log, append=True)]
    # One thread each: two processes of one thread outrun one process of two threads.
    environment = {"OMP_NUM_THREADS": "1"}
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


def work(args: argparse.Namespace) -> int:
    """Train; returns the exit status."""
    args.log.parent.mkdir(parents=True, exist_ok=True)
    # The processes meet in a file that must be new: an old one makes them wait for ever. It lies
    # with the log, where the hosts of a cluster see it too.
    with tempfile.TemporaryDirectory(prefix=".meeting", dir=args.log.parent) as folder:
        jobs = make_jobs(args, args.command, Path(folder) / "processes")
        watch = TrainingWatch(args.log)
        failures = run(jobs, len(jobs), stop_on_failure=True, watch=watch.show)
        watch.finish()
    for failure in failures:
        print(describe(failure), file=sys.stderr)
    return 1 if failures else 0


main = make_main("run_training", __doc__, add_options, work, runs="COMMAND")


if __name__ == "__main__":
    main()
