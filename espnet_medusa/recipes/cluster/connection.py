"""Connect to a Dask cluster, call its workers, and compare their package versions.

The scheduler imports this module to read tasks, so it must not import torch.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dask
import distributed.utils
from distributed import Client, LocalCluster, get_worker

from espnet_medusa.data.errors import InputError

logger = logging.getLogger(__name__)

# Workers are forked from a process that has imported ESPnet, which saves seconds per worker.
LOCAL = {"distributed.worker.multiprocessing-method": "forkserver"}
OURS = [f"espnet_medusa.{name}" for name in ("bin", "cluster.worker", "bin.asr_inference")]
IMPORTED = [*OURS, "espnet2.tasks.asr"]
PACKAGES = ("espnet_medusa", "espnet", "torch", "transformers", "numpy")  # that change results
COMPARED = ("python", "dask", "distributed", *PACKAGES)
COUNT_EVERY_S = 2.0  # interval of queries for the number of workers


@contextmanager
def connect(scheduler: str | None, workers: int) -> Iterator[Client]:
    """Connect to the scheduler at an address, or start a cluster on this machine.

    ``workers`` is the number of processes of that cluster; a process that dies is replaced. Raises
    InputError if the scheduler cannot be reached.
    """
    # Without a log line for each connection; a lost worker still logs one.
    logging.getLogger("distributed").setLevel(logging.WARNING)
    if scheduler is None:
        with dask.config.set(LOCAL):
            distributed.utils.get_mp_context().set_forkserver_preload(["distributed", *IMPORTED])
            # No memory limit: a worker's share of the machine may be smaller than the model.
            options = {"memory_limit": 0, "dashboard_address": "127.0.0.1:0"}
            with (
                LocalCluster(n_workers=workers, threads_per_worker=1, **options) as cluster,
                Client(cluster) as client,
            ):
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


def call_plugin(name: str, method: str, *arguments: Any) -> Any:
    """Call a method of a plugin of the worker that runs the task."""
    return getattr(get_worker().plugins[name], method)(*arguments)


class Workers:
    def __init__(self, client: Client):
        self.client = client
        self.scheduler = client.scheduler.address
        self.known: frozenset[str] = frozenset()
        self.counted = -COUNT_EVERY_S

    def count(self) -> int:
        """Return the number of workers, counted in the last ``COUNT_EVERY_S`` seconds.

        Raises InputError as ``check_versions``, which checks new workers.
        """
        now = time.monotonic()
        if not self.known or now - self.counted >= COUNT_EVERY_S:
            self.counted = now
            present = frozenset(self._query("nthreads"))
            if not present:
                logger.warning("the cluster has no workers; waiting for some")
            if present - self.known:
                self.check_versions()
            self.known = present
        return len(self.known)

    def check_versions(self) -> None:
        """Raise InputError if package versions differ from this process's, or contact is lost."""
        reply = self._query("get_versions", packages=[*PACKAGES])
        machines = {f"worker {address}": about for address, about in reply["workers"].items()}
        machines["the scheduler"] = reply["scheduler"]
        versions = {name: about["packages"] for name, about in machines.items()}
        check_same_versions(reply["client"]["packages"], versions)

    def lost(self) -> InputError:
        """Return the error of a lost connection to the scheduler."""
        reason = "the connection is lost; run the same command again to resume"
        return InputError(f"scheduler: {self.scheduler}: {reason}")

    def _query(self, method: str, **options: Any) -> Any:
        try:
            return getattr(self.client, method)(**options)
        except (OSError, AttributeError) as error:  # a client that has closed itself
            raise self.lost() from error


def check_same_versions(
    here: Mapping[str, str | None], machines: Mapping[str, Mapping[str, str | None]]
) -> None:
    """Raise InputError for the first package whose versions differ.

    Builds of one version, such as torch's for CUDA and for CPUs, count as equal, and so do
    Pythons of one minor version. A version of None is a package that is not installed.
    """
    for package in COMPARED:
        expected = _comparable(package, here.get(package))
        for name, versions in machines.items():
            version = _comparable(package, versions.get(package))
            if version != expected:
                raise InputError(
                    f"{name} has {package} {version or 'not installed'}, this machine has "
                    f"{expected or 'none'}; install the same versions everywhere"
                )


def _comparable(package: str, version: str | None) -> str:
    parts = (version or "").split("+")[0].split(".")
    return ".".join(parts[:2] if package == "python" else parts)
