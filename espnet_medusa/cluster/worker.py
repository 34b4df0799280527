"""What a worker keeps between tasks, its model, and what it does with a task."""

import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property

from dask.utils import SerializableLock
from distributed import Worker, WorkerPlugin, get_worker

from espnet_medusa.errors import InputError
from espnet_medusa.inference.batches import one_line
from espnet_medusa.inference.job import JobDecoder, JobInput
from espnet_medusa.inference.journal import Outcome
from espnet_medusa.recipe.jobs import GPUS, visible_gpus


class WorkerDecoder(WorkerPlugin):
    """Opens the model when the first task asks for it, once for each worker process.

    Args:
        open_decoder: Opens it; travels to the workers.
        folder: That relative paths start from.
        use_gpu: Whether it takes a GPU: of several the worker's number says which.
    """

    def __init__(self, open_decoder: Callable[[], JobDecoder], folder: str, use_gpu: bool = False):
        self.open_decoder = open_decoder
        self.folder = folder
        self.use_gpu = use_gpu
        self.lock = SerializableLock("espnet_medusa")  # should a worker have several threads

    def setup(self, worker: Worker) -> None:
        """Choose the GPU, before anything touches one."""
        if self.use_gpu:
            os.environ[GPUS] = choose_gpu(str(worker.name), visible_gpus(os.environ))

    def teardown(self, worker: Worker) -> None:
        """Forget the model."""
        self.__dict__.pop("decoder", None)

    @cached_property
    def decoder(self) -> JobDecoder:
        """The model, opened."""
        return self.open_decoder()

    def decode(self, entries: dict[str, str], languages: dict[str, str]) -> list[Outcome]:
        """Decode some utterances.

        Args:
            entries: Utterance id to the value in wav.scp.
            languages: Utterance id to code, where it differs from the search's own.

        Raises:
            InputError: The model cannot be opened here, or the folder is not here.
        """
        with self.lock:
            return [*self._opened().decode(JobInput([*entries], entries, {}, languages))]

    def sample_rate_hz(self) -> int:
        """Of the model; errors as those of ``decode``."""
        with self.lock:
            return self._opened().sample_rate_hz

    def _opened(self) -> JobDecoder:
        try:
            if not os.path.isdir(self.folder):
                raise InputError(f"{self.folder} is not there; workers need this machine's folders")
            os.chdir(self.folder)
            return self.decoder
        except Exception as error:
            raise InputError(f"worker {get_worker().address}: {one_line(error)}") from error


def choose_gpu(name: str, gpus: Sequence[str]) -> str:
    """The GPU of a worker: the number that its name ends with counts around those there are.

    Args:
        name: Such as ``3`` (of a local cluster), ``SLURMCluster-0-3`` or, without a number, an
            address: the first GPU.
        gpus: Names for ``CUDA_VISIBLE_DEVICES``, at least one.
    """
    number = re.search(r"(?<!:)(?<!\d)\d+$", name)
    return gpus[int(number[0]) % len(gpus) if number else 0]
