"""A worker of the cluster: it opens the model once and decodes tasks with it."""

import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property

from dask.utils import SerializableLock
from distributed import Worker, WorkerPlugin, get_worker

from espnet_medusa.data.errors import InputError, one_line
from espnet_medusa.inference.job import JobDecoder, JobInput
from espnet_medusa.inference.journal import Outcome
from espnet_medusa.recipes.jobs import GPUS, visible_gpus


class WorkerDecoder(WorkerPlugin):
    """Decodes tasks; the first task opens the model, once per worker process."""

    def __init__(self, open_decoder: Callable[[], JobDecoder], folder: str, use_gpu: bool = False):
        self.open_decoder = open_decoder  # opens the model; is pickled for the workers
        self.folder = folder  # base of relative paths
        self.use_gpu = use_gpu  # whether the worker takes a GPU, by the number in its name
        self.lock = SerializableLock("espnet_medusa")  # for workers with several threads

    def setup(self, worker: Worker) -> None:
        """Choose the GPU before CUDA is initialized."""
        if self.use_gpu:
            os.environ[GPUS] = choose_gpu(str(worker.name), visible_gpus(os.environ))

    def teardown(self, worker: Worker) -> None:
        self.__dict__.pop("decoder", None)

    @cached_property
    def decoder(self) -> JobDecoder:
        return self.open_decoder()

    def decode(self, entries: dict[str, str], languages: dict[str, str]) -> list[Outcome]:
        """Decode the utterances of a task; raise InputError if model or folder is missing."""
        with self.lock:
            return [*self._opened().decode(JobInput([*entries], entries, {}, languages))]

    def sample_rate_hz(self) -> int:
        """Return the sample rate of the model; errors as for ``decode``."""
        with self.lock:
            return self._opened().sample_rate_hz

    def _opened(self) -> JobDecoder:
        try:
            if not os.path.isdir(self.folder):
                raise InputError(f"{self.folder}: missing; workers need the folders of this job")
            os.chdir(self.folder)
            return self.decoder
        except Exception as error:
            raise InputError(f"worker {get_worker().address}: {one_line(error)}") from error


def choose_gpu(name: str, gpus: Sequence[str]) -> str:
    """Choose a GPU by the number that the name of a worker ends with, modulo the GPUs.

    Examples: ``3`` (of a local cluster), ``SLURMCluster-0-3``. A name without a number,
    such as an address, gets the first GPU.
    """
    number = re.search(r"(?<!:)(?<!\d)\d+$", name)
    return gpus[int(number[0]) % len(gpus) if number else 0]
