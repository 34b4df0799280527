"""Run `-- COMMAND` once, here or as a job of Slurm: its output and its exit status are ours.

python -m espnet_medusa.stages.run_command --cmd "slurm.pl --gpu 1" --log x.log -- COMMAND ...
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from espnet_medusa.bin.command_line import make_main
from espnet_medusa.recipe.jobs import SHELL_SIGNAL, interruptible, stop
from espnet_medusa.recipe.live import LogFollower
from espnet_medusa.slurm.array_job import ArrayJob
from espnet_medusa.slurm.configuration import PREFIX_HELP, is_slurm, parse_request
from espnet_medusa.slurm.run import refuse_active_jobs, run_array


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--cmd", default="", help=PREFIX_HELP)
    parser.add_argument("--log", required=True, help="what it writes on another machine")


def run_on_slurm(args: argparse.Namespace) -> int:
    """Run the command in a job of Slurm; returns its exit status, 1 where it has none.

    Raises:
        InputError: Slurm refuses it, or the options are not those of slurm.pl.
    """
    array = ArrayJob(range(1, 2), tuple(args.command), args.log, placeholder=None)
    array.log_of(1).unlink(missing_ok=True)
    follower = LogFollower(args.log)

    def show(where: str = "") -> None:
        for line in follower.new_lines():
            print(line, flush=True)

    failures, _ = run_array(array, parse_request(args.cmd), True, show)
    show()
    if not failures:
        return 0
    [failure] = failures
    print(f"{array.name} {failure.ending}: {args.log}", file=sys.stderr)
    return failure.status or 1


def work(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status."""
    if is_slurm(args.cmd):
        return run_on_slurm(args)
    refuse_active_jobs(Path(args.log).parent)
    with interruptible():
        command = [*shlex.split(args.cmd), *args.command]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            status = process.wait()
        except BaseException:  # an interruption ends it, too, with time to leave nothing behind
            stop([process])
            raise
    return status if status >= 0 else SHELL_SIGNAL - status


main = make_main("run_command", __doc__, add_options, work, runs="COMMAND")


if __name__ == "__main__":
    main()
