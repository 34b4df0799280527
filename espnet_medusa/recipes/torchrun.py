"""ESPnet's training by torchrun, which restarts all processes after one has failed.

https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import re
import shlex

STARTED = "# started at "  # in the log, at the start of each run
FAILED = re.compile(r"^E\d.* torch/distributed/elastic/.*\] failed \(exitcode: ", re.MULTILINE)
# Otherwise restarted processes read the addresses of the failed ones from the shared store and wait
# for them: https://github.com/pytorch/pytorch/issues/135712
NO_SHARED_STORE = ("env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")


def launch_here(python: str, processes: int, max_restarts: int) -> list[str]:
    """Return the torchrun arguments before a training command of ``python`` on this machine."""
    return [*_torchrun(python, 1, processes, max_restarts), "--standalone", "--no-python"]


def launch_under_srun(python: str, nodes: int, processes: int, max_restarts: int) -> str:
    """Return the shell words before a training command in a Slurm job: srun, then torchrun.

    Arguments as of ``launch_here``; `processes` is the number on each node.
    """
    # srun does not inherit the job's --cpus-per-task (since Slurm 22.05). The processes rendezvous
    # on the job's first node, which runs the script; the port depends on the job's number.
    return (
        f"srun --nodes={nodes} --ntasks-per-node=1 --kill-on-bad-exit=1 --export=ALL "
        '--cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" '
        f"{shlex.join(_torchrun(python, nodes, processes, max_restarts))} "
        '--rdzv_backend=c10d --rdzv_id="${SLURM_JOB_ID}" '
        '--rdzv_endpoint="$(hostname):$((20000 + SLURM_JOB_ID % 10000))" --no-python '
    )


def espnet_options(gpus: int) -> list[str]:
    """Return ESPnet's options under torchrun, which sets the rank; ``gpus`` 0: on CPUs."""
    device = ("--ngpu", "1") if gpus else ("--dist_backend", "gloo")
    return ["--multiprocessing_distributed", "false", *device]


def without_report(log: str) -> str:
    """Remove torchrun's final failure report, so that a log ends with the processes' messages."""
    before, started, last_run = log.rpartition(STARTED)
    reports = [*FAILED.finditer(last_run)]
    return before + started + (last_run[: reports[-1].start()] if reports else last_run)


def _torchrun(python: str, nodes: int, processes: int, max_restarts: int) -> list[str]:
    store = NO_SHARED_STORE if max_restarts else ()
    options = f"--nnodes={nodes}", f"--nproc_per_node={processes}", f"--max_restarts={max_restarts}"
    return [*store, python, "-m", "torch.distributed.run", *options]
