"""Stage 11: run ESPnet's training in local processes, by torchrun, or in a Slurm job."""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

from espnet_medusa.data.command_line import positive, whole_number
from espnet_medusa.recipes import torchrun
from espnet_medusa.recipes.jobs import Job, check_gpus, describe, run
from espnet_medusa.recipes.log_progress import TrainingProgress
from espnet_medusa.recipes.slurm.array_job import ArrayJob
from espnet_medusa.recipes.slurm.configuration import PREFIX_HELP, Request, is_slurm, parse_request
from espnet_medusa.recipes.slurm.run import refuse_active_jobs, run_array
from espnet_medusa.recipes.stages import Command


def systems(parser: argparse.ArgumentParser) -> Command:
    """List a recipe's systems: name, configuration, checkpoint, initial weights, options.

    One system per line, separated by tabs. Initial weights and training options may be empty.
    """
    from espnet_medusa.recipes.systems import plan_systems

    add = parser.add_argument
    add("--base", default="base", help="the base model")
    add("--heads", default="", help="systems with heads, separated by spaces")
    add("--conf_dir", type=Path, default=Path("conf"), help="folder of train_<kind>.yaml")
    add("--exp_dir", type=Path, default=Path("exp"), help="experiments")
    add("--base_model", default="", help="checkpoint of the base model; default: the best")
    add("--heads_model", default="", help="checkpoint of systems with heads; default: the best")
    add("--base_start", default="", help="initial weights of the base model")

    args = yield
    values = {**vars(args), "heads": args.heads.split()}
    for system in plan_systems(**values):
        print(*astuple(system), sep="\t")


def check_start(parser: argparse.ArgumentParser) -> Command:
    """Record the initial weights of a training; stop if it would resume from other ones."""
    from espnet_medusa.recipes.initial_weights import check_start

    add = parser.add_argument
    add("--exp_dir", type=Path, required=True, help="folder of the training's checkpoints")
    add("--init_param", nargs="+", required=True, help="such as FILE:encoder:encoder")
    args = yield
    check_start(args.exp_dir, args.init_param)


def plot_training(parser: argparse.ArgumentParser) -> Command:
    """Plot the training curves of an experiment's train.log into its subfolder images."""
    from espnet_medusa.recipes.report.experiment_figures import plot_experiment

    parser.add_argument("--exp_dir", type=Path, required=True, help="folder of train.log")
    args = yield
    print(*plot_experiment(args.exp_dir), sep="\n")


def run_training(parser: argparse.ArgumentParser) -> Command:
    """Run `-- COMMAND`, ESPnet's training, in one or more processes on CPUs or GPUs.

    With --max_restarts 3 torchrun starts the processes. If one fails, torchrun restarts all, at
    most three times; training resumes after the last epoch. With --cmd "slurm.pl --gpu 4
    --num_nodes 2" Slurm runs torchrun, which starts a process for each GPU, or --nj per node.
    """
    add = parser.add_argument
    add("--log", type=Path, required=True, help="log file; resumed runs append to it")
    add("--nj", type=positive, default=1, help="CPU processes that share each batch (--ngpu 0)")
    add("--ngpu", type=whole_number, default=0, help="GPUs of this machine; the same as in COMMAND")
    restarts = "maximum restarts of all processes after one has failed"
    add("--max_restarts", type=whole_number, default=0, help=restarts)
    add("--cmd", default="", help=PREFIX_HELP)
    args = yield
    if not args.cmd.strip():
        check_gpus(args.ngpu)
    args.log.parent.mkdir(parents=True, exist_ok=True)
    refuse_active_jobs(args.log.parent)
    progress = TrainingProgress(args.log)
    if is_slurm(args.cmd):
        request = parse_request(args.cmd, threads=args.nj)
        failures, restarted = run_array(_make_array(args, request), request, True, progress.show)
        if restarted:
            progress.line.print("training: Slurm restarted it; it resumed after the last epoch")
        failures = [replace(entry, job=replace(entry.job, name="training")) for entry in failures]
    else:
        # The processes rendezvous through a new file: with an old one, they would hang. It is next
        # to the log, which all hosts of a cluster see.
        with tempfile.TemporaryDirectory(prefix=".rendezvous", dir=args.log.parent) as folder:
            jobs = _make_jobs(args, Path(folder) / "processes")
            failures = run(jobs, len(jobs), stop_on_failure=True, watch=progress.show)
    progress.show(last=True)
    for failure in failures:
        print(describe(failure, torchrun.without_report), file=sys.stderr)
    if failures:
        remedy = "correct what the log names and run the stage again; finished epochs are kept"
        print(f"training: {remedy}", file=sys.stderr)
    return 1 if failures else 0


def _make_array(args: argparse.Namespace, request: Request) -> ArrayJob:
    processes = request.gpus or args.nj
    launcher, command = "", tuple(args.command)
    if processes * request.nodes > 1 or args.max_restarts:
        python = _python_of(command)
        launcher = torchrun.launch_under_srun(python, request.nodes, processes, args.max_restarts)
        command += tuple(torchrun.espnet_options(request.gpus))
    return ArrayJob(range(1, 2), command, str(args.log), launcher, append=True, placeholder=None)


def _make_jobs(args: argparse.Namespace, rendezvous_file: Path) -> list[Job]:
    """Build one job per process, or one that runs torchrun; rank 0 writes to --log."""
    # Two processes of one thread are faster than one process of two threads.
    environment = {"OMP_NUM_THREADS": "1"} if args.nj > 1 else {}
    command = args.command
    if args.max_restarts:
        processes = args.ngpu or args.nj
        launcher = torchrun.launch_here(_python_of(command), processes, args.max_restarts)
        command = [*launcher, *command, *torchrun.espnet_options(args.ngpu)]
    command = (*shlex.split(args.cmd), *command)
    if args.nj == 1 or args.max_restarts:
        return [Job("training", command, args.log, environment, append=True)]
    # The processes average their gradients.
    rendezvous = rendezvous_file.absolute().as_uri()
    command += (*torchrun.espnet_options(gpus=0), "--dist_world_size", str(args.nj))
    return [
        Job(
            name=f"training process {rank}",
            command=(*command, "--dist_rank", str(rank), "--dist_init_method", rendezvous),
            log=args.log if rank == 0 else args.log.with_suffix(f".rank{rank}.log"),
            environment=environment,
            append=rank == 0,
        )
        for rank in range(args.nj)
    ]


def _python_of(command: Sequence[str]) -> str:
    """Return the Python interpreter of a command; torchrun must be run by the same one."""
    return command[0] if "-m" in command[1:2] else "python3"
