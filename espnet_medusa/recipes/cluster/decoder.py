"""Decode the utterances of a job on a cluster, in tasks of similar lengths."""

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dask.base import tokenize
from distributed import Client, Future, KilledWorker, as_completed

from espnet_medusa.data.audio.reader import AudioError, probe_audio
from espnet_medusa.data.audio.source import is_pipe
from espnet_medusa.data.errors import InputError, one_line
from espnet_medusa.data.kaldi.table import scan_table
from espnet_medusa.inference.batches import make_batches
from espnet_medusa.inference.job import JobDecoder, JobInput, log_times
from espnet_medusa.inference.journal import Decoded, Failed, Outcome
from espnet_medusa.inference.longform.window import FRAMES_PER_S
from espnet_medusa.networks.whisper.log_mel import SAMPLE_RATE_HZ
from espnet_medusa.recipes.cluster.connection import Workers, call_plugin
from espnet_medusa.recipes.cluster.worker import WorkerDecoder

logger = logging.getLogger(__name__)

TASKS_AHEAD = 2  # per worker, so that none waits for its next task
UNKNOWN_FRAMES = 30 * FRAMES_PER_S  # Whisper's window
READERS = 16  # threads that read headers, which is I/O
TASK_FRAMES = 12000  # two minutes of audio take seconds; the overhead of a task is milliseconds
TASKS_PER_WORKER = 4  # minimum; with fewer, all workers wait for the last task
DEADLY_TASKS = 3  # if so many tasks fail before one succeeds, their utterances are not the cause


def read_lengths(keys: Sequence[str], entries: Mapping[str, str], wav_scp: Path) -> dict[str, int]:
    """Read the approximate number of 10 ms frames of each utterance.

    The source is ``utt2num_samples`` next to wav.scp, which recipes write (at 16 kHz), or else
    the header of the file. Commands and unreadable files count as one Whisper window. ``entries``
    are the values of wav.scp.
    """
    table = wav_scp.parent / "utt2num_samples"
    samples = scan_table(table).entries if table.is_file() else {}
    listed = {key: int(samples[key]) for key in keys if samples.get(key, "").isdecimal()}
    unlisted = [key for key in keys if key not in listed]
    with ThreadPoolExecutor(READERS) as readers:
        frames = readers.map(_header_frames, (entries[key] for key in unlisted))
    lengths = {key: number * FRAMES_PER_S // SAMPLE_RATE_HZ for key, number in listed.items()}
    lengths |= zip(unlisted, frames, strict=True)
    return {key: lengths[key] for key in keys}


def _header_frames(entry: str) -> int:
    try:  # a command runs once, on the worker, which also reports errors
        duration_s = None if is_pipe(entry) else probe_audio(entry).duration_s
    except AudioError:
        duration_s = None
    return UNKNOWN_FRAMES if duration_s is None else round(duration_s * FRAMES_PER_S)


def plan_tasks(
    lengths: Mapping[str, int], batch_size: int, max_batch_frames: int | None, workers: int
) -> list[list[str]]:
    """Divide utterances into tasks of similar lengths, the longest first.

    A task is one batch, or consecutive batches of at most ``TASK_FRAMES`` padded frames. Tasks are
    smaller if there would be fewer than ``TASKS_PER_WORKER`` per worker. A single process sorts
    within pools, so its batches may differ. ``lengths`` are 10 ms frames by utterance id.
    """
    keys, frames = [*lengths], [max(length, 1) for length in lengths.values()]
    batches = make_batches(frames, batch_size, max_batch_frames)
    sizes = [len(batch) * frames[batch[0]] for batch in batches]
    most = min(TASK_FRAMES, math.ceil(sum(sizes) / (TASKS_PER_WORKER * workers)))
    tasks, room = [], 0
    for batch, size in zip(batches, sizes, strict=True):
        if size > room:
            tasks.append([])
            room = most
        tasks[-1] += [keys[index] for index in batch]
        room -= size
    return tasks


@dataclass
class ClusterDecoder:
    """Decodes utterances on the workers of a cluster.

    The scheduler has at most ``TASKS_AHEAD`` tasks per worker. A task consists of ids and paths;
    workers read the audio. An utterance has one outcome, however often its task ran.
    """

    client: Client
    workers: Workers
    plugin: str  # name of the workers' plugin that has the model
    rate: Future  # sample rate of the model, which a worker returns
    wav_scp: Path  # utt2num_samples may be next to it
    batch_size: int = 1  # maximum number of utterances that a worker decodes together
    max_batch_frames: int | None = None  # most frames of 10 ms of a batch; None: no limit

    @cached_property
    def sample_rate_hz(self) -> int:
        """Sample rate of the model; raises InputError if no worker can open it."""
        try:
            return self.rate.result()
        except Exception as error:
            reason = _describe_deaths(self._as_killed_worker(error))
            raise InputError(f"the model cannot be opened: {reason}") from error

    def decode(self, job: JobInput) -> Iterator[Outcome]:
        """Yield each utterance's outcome once, in any order.

        If a task kills its workers, its utterances are decoded one by one at the end, with no other
        task running. An utterance that kills its workers again fails. Raises InputError if a worker
        cannot decode at all, all workers die, or the connection to the scheduler is lost.
        """
        yield from (Failed(key, job.problems[key]) for key in job.keys if key in job.problems)
        keys = [key for key in job.keys if key not in job.problems]
        lengths = read_lengths(keys, job.entries, self.wav_scp)
        workers = max(self.workers.count(), 1)
        tasks = plan_tasks(lengths, self.batch_size, self.max_batch_frames, workers)
        # The rate is read before a task can kill the worker that has it.
        rate = f"{self.sample_rate_hz} Hz"
        logger.info(f"{len(keys)} utterances, {rate}, {len(tasks)} tasks, {workers} workers")
        deadly, any_done = [], False
        for task, result in self._run(job, tasks):
            if isinstance(result, KilledWorker):
                deadly.append(task)
                logger.warning(f"{_describe_deaths(result)}: task of {task[0]}, {len(task)} ids")
                if len(deadly) == DEADLY_TASKS and not any_done:
                    raise InputError(f"{_describe_deaths(result)}, in each of {DEADLY_TASKS} tasks")
            else:
                any_done = True
                yield from self._logged(result)
        single = [[key] for task in deadly for key in task]
        for (key,), result in self._run(job, single, alone=True):
            if isinstance(result, KilledWorker):
                yield Failed(key, f"{job.entries[key]}: {_describe_deaths(result)}")
            else:
                yield from self._logged(result)

    def _logged(self, outcomes: Sequence[Outcome]) -> Iterator[Outcome]:
        for outcome in outcomes:
            if isinstance(outcome, Decoded):
                log_times(outcome, self.sample_rate_hz)
            yield outcome

    def _run(
        self, job: JobInput, tasks: Sequence[list[str]], alone: bool = False
    ) -> Iterator[tuple[list[str], list[Outcome] | KilledWorker]]:
        """Yield each task with its outcomes, or with the error if it killed its workers.

        ``alone``: run one task after the other.
        """
        waiting = deque(tasks)
        running = as_completed(with_results=True, raise_errors=False)
        submitted: dict[str, list[str]] = {}
        while waiting or submitted:
            most = 1 if alone else TASKS_AHEAD * max(self.workers.count(), 1)
            while waiting and len(submitted) < most:
                keys = waiting.popleft()
                entries = {key: job.entries[key] for key in keys}
                languages = {key: job.languages[key] for key in keys if key in job.languages}
                task = self.plugin, "decode", entries, languages  # as ``WorkerDecoder.decode``
                future = self.client.submit(call_plugin, *task, pure=False)
                submitted[future.key] = keys
                running.add(future)
            future, result = next(running)
            if future.status == "error":
                result = result[1]  # type, error, traceback
            if isinstance(result, BaseException):
                result = self._as_killed_worker(result)
            self.workers.count()  # check the versions of a new worker before using its outcomes
            yield submitted.pop(future.key), result

    def _as_killed_worker(self, error: Exception) -> KilledWorker:
        """Return the error if the task killed its workers; raise InputError for other errors.

        Any other error would also occur in all other tasks.
        """
        if isinstance(error, KilledWorker):
            return error
        if isinstance(error, CancelledError):
            raise self.workers.lost() from error
        if isinstance(error, InputError):
            raise error
        self.workers.check_versions()
        raise InputError(f"a worker cannot run its task: {one_line(error)}") from error


def _describe_deaths(error: KilledWorker) -> str:
    return (
        f"{error.allowed_failures + 1} workers died one after the other, the last one "
        f"{error.last_worker.address}; read its log, and check its memory"
    )


@contextmanager
def cluster_decoder(
    client: Client, open_decoder: Callable[[], JobDecoder], use_gpu: bool, **options
) -> Iterator[ClusterDecoder]:
    """Prepare the workers of a cluster to decode a job.

    ``open_decoder`` is that of ``WorkerDecoder``, ``options`` are other fields of
    ``ClusterDecoder``. Raises InputError if a worker has other package versions, or no GPU.
    """
    # Equal options give equal names, so the plugin of an earlier, killed run is replaced.
    plugin = f"espnet_medusa-{tokenize(open_decoder)}"
    workers = Workers(client)
    workers.count()
    try:
        client.register_plugin(WorkerDecoder(open_decoder, os.getcwd(), use_gpu), name=plugin)
    except Exception as error:
        raise InputError(f"a worker cannot be used: {one_line(error)}") from error
    try:
        rate = client.submit(call_plugin, plugin, "sample_rate_hz", pure=False)
        yield ClusterDecoder(client, workers, plugin, rate, **options)
    finally:
        with suppress(Exception):  # the scheduler may have ended
            client.unregister_worker_plugin(plugin)
