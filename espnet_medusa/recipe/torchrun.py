"""ESPnet's training by torchrun: it starts processes, and all of them again where one dies.

https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import re
import shlex

STARTED = "# started at "  # a log of several runs has it once a run
FAILED = re.compile(r"^E\d.* torch/distributed/elastic/.*\] failed \(exitcode: ", re.MULTILINE)
# Processes that are started again would otherwise find the addresses of the dead where they meet,
# and wait for them: https://github.com/pytorch/pytorch/issues/135712
OWN_STORE = ("env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")


def launch_here(python: str, processes: int, max_restarts: int) -> list[str]:
    """Words before a training command, on this machine.

    Args:
        python: Interpreter of the command, whose torch launches it.
        processes: That share the training.
        max_restarts: How often they are started again.
    """
    return [*_torchrun(python, 1, processes, max_restarts), "--standalone", "--no-python"]


def launch_under_srun(python: str, nodes: int, processes: int, max_restarts: int) -> str:
    """Shell words before a training command, within a job of Slurm: a launcher on each node.

    Args:
        python: Interpreter of the command, whose torch launches it.
        nodes: Of the job.
        processes: On each of them.
        max_restarts: How often they are started again.
    """
    # srun takes over no --cpus-per-task of the job by itself (Slurm 22.05). The job's script runs
    # on its first node, where the processes meet; jobs that share a node have ports of their own.
    return (
        f"srun --nodes={nodes} --ntasks-per-node=1 --kill-on-bad-exit=1 --export=ALL "
        '--cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" '
        f"{shlex.join(_torchrun(python, nodes, processes, max_restarts))} "
        '--rdzv_backend=c10d --rdzv_id="${SLURM_JOB_ID}" '
        '--rdzv_endpoint="$(hostname):$((20000 + SLURM_JOB_ID % 10000))" --no-python '
    )


def espnet_options(gpus: int) -> list[str]:
    """ESPnet's options for a process that torchrun started; rank and world are in its environment.

    Args:
        gpus: Of each node; 0: processes compute on CPUs.
    """
    if gpus:
        return ["--multiprocessing_distributed", "false", "--ngpu", "1"]
    return ["--multiprocessing_distributed", "false", "--dist_backend", "gloo"]


def without_report(log: str) -> str:
    """A log up to what torchrun says when it gives up, behind the last words of the processes."""
    before, started, words = log.rpartition(STARTED)
    failures = [*FAILED.finditer(words)]
    return before + started + (words[: failures[-1].start()] if failures else words)


def _torchrun(python: str, nodes: int, processes: int, max_restarts: int) -> list[str]:
    return [
        *(OWN_STORE if max_restarts else ()),
        *(python, "-m", "torch.distributed.run"),
        *(f"--nnodes={nodes}", f"--nproc_per_node={processes}", f"--max_restarts={max_restarts}"),
    ]
