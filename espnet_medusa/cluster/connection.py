"""A Dask cluster to decode on: one that runs, or workers on this machine."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import dask
import distributed.utils
from distributed import Client, LocalCluster

from espnet_medusa.errors import InputError

# A worker is forked from a process that has imported ESPnet: seconds less, for each that is
# replaced, too.
LOCAL = {"distributed.worker.multiprocessing-method": "forkserver"}
IMPORTED = ["espnet_medusa.cluster.worker", "espnet_medusa.bin.asr_inference"]


@contextmanager
def connect(scheduler: str | None, workers: int) -> Iterator[Client]:
    """The cluster's client.

    Args:
        scheduler: Address of a scheduler that runs; None: a cluster of this machine's.
        workers: Processes of the latter, one thread each; those that vanish are replaced.

    Raises:
        InputError: The scheduler cannot be reached.
    """
    # Not a line of the log for each connection; for each worker that is lost there is one.
    logging.getLogger("distributed").setLevel(logging.WARNING)
    if scheduler is None:
        with _local_cluster(workers) as cluster, Client(cluster) as client:
            yield client
        return
    try:
        client = Client(scheduler)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"scheduler: {scheduler}: cannot be reached ({error}); start `dask scheduler` there, "
            "or leave scheduler out for workers on this machine"
        ) from error
    with client:
        yield client


@contextmanager
def _local_cluster(workers: int) -> Iterator[LocalCluster]:
    with dask.config.set(LOCAL):
        context = distributed.utils.get_mp_context()
        context.set_forkserver_preload(["distributed", *IMPORTED])
        # No memory limit: a worker's share of the machine may be less than a model.
        with LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address="127.0.0.1:0"
        ) as cluster:
            yield cluster
