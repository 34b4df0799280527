"""Which utterances a task has."""

import math
from collections.abc import Mapping

from espnet_medusa.inference.batches import make_batches

TASK_FRAMES = 12000  # two minutes: seconds of work, where a task's own cost is milliseconds
TASKS_A_WORKER = 4  # at least, or all wait for the worker that had the last one


def plan_tasks(
    lengths: Mapping[str, int], batch_size: int, max_batch_frames: int | None, workers: int
) -> list[list[str]]:
    """Put utterances of like length together, the longest first.

    A task is a run of batches, which are those that one process would make of all utterances.

    Args:
        lengths: Utterance id to frames of 10 ms.
        batch_size: Most utterances that are decoded together.
        max_batch_frames: Most frames of a batch; None: no limit.
        workers: How many share the tasks.

    Returns:
        Ids of each task: at most ``TASK_FRAMES``, padded, or one batch; fewer frames where there
        would be fewer tasks than ``TASKS_A_WORKER`` for each worker.
    """
    keys, frames = [*lengths], [max(length, 1) for length in lengths.values()]
    batches = make_batches(frames, batch_size, max_batch_frames)
    sizes = [len(batch) * frames[batch[0]] for batch in batches]
    most = min(TASK_FRAMES, math.ceil(sum(sizes) / (TASKS_A_WORKER * workers)))
    tasks: list[list[str]] = []
    room = 0
    for batch, size in zip(batches, sizes, strict=True):
        if size > room:
            tasks.append([])
            room = most
        tasks[-1] += [keys[index] for index in batch]
        room -= size
    return tasks
