"""Hands the utterances of a job to a cluster's workers and takes their results."""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dask.base import tokenize
from distributed import Client, Future, KilledWorker, as_completed

from espnet_medusa.cluster.call import call_plugin
from espnet_medusa.cluster.lengths import read_lengths
from espnet_medusa.cluster.tasks import plan_tasks
from espnet_medusa.cluster.worker import WorkerDecoder
from espnet_medusa.cluster.workers import Workers
from espnet_medusa.errors import InputError
from espnet_medusa.inference.batches import one_line
from espnet_medusa.inference.job import JobDecoder, JobInput, log_whole
from espnet_medusa.inference.journal import Decoded, Failed, Outcome

logger = logging.getLogger(__name__)

TASKS_AHEAD = 2  # for each worker, so that none waits for its next one
DEADLY_TASKS = 3  # so many, and none that was done: it is not the utterances


@dataclass
class ClusterDecoder:
    """Utterances to results, by the workers of a cluster.

    The scheduler never has more than ``TASKS_AHEAD`` tasks for each worker, and tasks are names:
    workers read the audio. However often a task ran, its utterances have one outcome.

    Attributes:
        client: Of the cluster.
        workers: Those of the cluster.
        plugin: Name of what the workers keep.
        rate: Sample rate of the model, asked for.
        wav_scp: Beside which lengths may stand.
        batch_size: Most utterances that a worker decodes together.
        max_batch_frames: Most frames of 10 ms of a batch; None: no limit.
    """

    client: Client
    workers: Workers
    plugin: str
    rate: Future
    wav_scp: Path
    batch_size: int = 1
    max_batch_frames: int | None = None

    @cached_property
    def sample_rate_hz(self) -> int:
        """Of the model, which a worker opens to answer.

        Raises:
            InputError: It cannot be opened.
        """
        try:
            return self.rate.result()
        except Exception as error:
            reason = _deaths(self._ended_workers(error))
            raise InputError(f"the model cannot be opened: {reason}") from error

    def decode(self, job: JobInput) -> Iterator[Outcome]:
        """Each utterance's outcome once, as they come.

        An utterance of a task that ended its workers is decoded alone, after all others and while
        nothing else runs. One that ends its workers then, too, has failed.

        Raises:
            InputError: A worker cannot decode at all, all die, or the scheduler is lost.
        """
        yield from (Failed(key, job.problems[key]) for key in job.keys if key in job.problems)
        keys = [key for key in job.keys if key not in job.problems]
        lengths = read_lengths(keys, job.entries, self.wav_scp)
        workers = max(self.workers.count(), 1)
        tasks = plan_tasks(lengths, self.batch_size, self.max_batch_frames, workers)
        logger.info(f"{len(keys)} utterances, {len(tasks)} tasks, {workers} workers")
        deadly: list[list[str]] = []
        any_done = False
        for task, found in self._run(job, tasks, self._most_running):
            if isinstance(found, KilledWorker):
                deadly.append(task)
                logger.warning(f"{_deaths(found)} with {task[0]} and {len(task) - 1} more")
                if len(deadly) == DEADLY_TASKS and not any_done:
                    raise InputError(f"{_deaths(found)}, and so with {DEADLY_TASKS} tasks of all")
            else:
                any_done = True
                yield from self._logged(found)
        alone = [[key] for task in deadly for key in task]
        for (key,), found in self._run(job, alone, lambda: 1):
            if isinstance(found, KilledWorker):
                yield Failed(key, f"{job.entries[key]}: {key}: {_deaths(found)}")
            else:
                yield from self._logged(found)

    def _most_running(self) -> int:
        return TASKS_AHEAD * max(self.workers.count(), 1)

    def _logged(self, outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
        for outcome in outcomes:
            if isinstance(outcome, Decoded):
                log_whole(outcome, self.sample_rate_hz)
            yield outcome

    def _run(
        self, job: JobInput, tasks: Sequence[list[str]], most_running: Callable[[], int]
    ) -> Iterator[tuple[list[str], list[Outcome] | KilledWorker]]:
        """Each task with what came of it, as they are done."""
        waiting = deque(tasks)
        running = as_completed(with_results=True, raise_errors=False)
        submitted: dict[str, list[str]] = {}
        while waiting or submitted:
            most = most_running()
            while waiting and len(submitted) < most:
                arguments = arguments_of(job, waiting[0])
                future = self.client.submit(
                    call_plugin, self.plugin, "decode", *arguments, pure=False
                )
                submitted[future.key] = waiting.popleft()
                running.add(future)
            future, found = next(running)
            if future.status == "error":
                found = self._ended_workers(found[1])  # of type, error, traceback
            elif isinstance(found, CancelledError):
                found = self._ended_workers(found)
            self.workers.count()  # of a new worker's outcomes none stands before it is looked at
            yield submitted.pop(future.key), found

    def _ended_workers(self, error: Exception) -> KilledWorker:
        """The error of a task that ended its workers.

        Raises:
            InputError: It is another one, which no task can be without.
        """
        if isinstance(error, KilledWorker):
            return error
        if isinstance(error, CancelledError):
            raise self.workers.lost() from error
        if isinstance(error, InputError):
            raise error
        self.workers.check_versions()
        raise InputError(f"a worker cannot run its task: {one_line(error)}") from error


def arguments_of(job: JobInput, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """What ``WorkerDecoder.decode`` gets of some utterances."""
    languages = {key: job.languages[key] for key in keys if key in job.languages}
    return {key: job.entries[key] for key in keys}, languages


def _deaths(error: KilledWorker) -> str:
    """What ended workers."""
    return (
        f"{error.allowed_failures + 1} workers died one after the other, the last one "
        f"{error.last_worker.address}; see its log, and whether its memory suffices"
    )


@contextmanager
def cluster_decoder(
    client: Client, open_decoder: Callable[[], JobDecoder], use_gpu: bool, **options
) -> Iterator[ClusterDecoder]:
    """Workers that have what they need to decode.

    Args:
        client: Of the cluster.
        open_decoder: Opens the model; travels to the workers.
        use_gpu: Whether each worker takes a GPU.
        options: What ``ClusterDecoder`` has of the job: ``wav_scp`` and how batches are made.

    Raises:
        InputError: A worker has other versions of packages, or no GPU.
    """
    # What a driver that was killed has left has the same name, and is replaced.
    plugin = f"espnet_medusa-{tokenize(open_decoder)}"
    workers = Workers(client)
    workers.count()
    try:
        client.register_plugin(WorkerDecoder(open_decoder, os.getcwd(), use_gpu), name=plugin)
    except Exception as error:
        raise InputError(f"a worker cannot take part: {one_line(error)}") from error
    try:
        rate = client.submit(call_plugin, plugin, "sample_rate_hz", pure=False)
        yield ClusterDecoder(client, workers, plugin, rate, **options)
    finally:
        with suppress(Exception):  # the scheduler may be gone
            client.unregister_worker_plugin(plugin)
