"""ESPnet's training by torchrun under srun: one launcher on each node, which starts its processes.

https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import shlex


def launcher(python: str, nodes: int, processes: int) -> str:
    """Shell words before a training command, within a job of Slurm.

    Args:
        python: Interpreter of the command, whose torch launches it.
        nodes: Of the job.
        processes: On each of them.
    """
    # srun takes over no --cpus-per-task of the job by itself (Slurm 22.05). The job's script runs
    # on its first node, where the processes meet; jobs that share a node have ports of their own.
    return (
        f"srun --nodes={nodes} --ntasks-per-node=1 --kill-on-bad-exit=1 --export=ALL "
        '--cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" '
        f"{shlex.quote(python)} -m torch.distributed.run "
        f"--nnodes={nodes} --nproc_per_node={processes} "
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
