"""Run a batch, and smaller batches after a failure."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from espnet_medusa.data.errors import InputError, log_traceback, one_line

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_batch(
    run: Callable[[Sequence[Item]], Sequence[Result | Exception]],
    batch: Sequence[Item],
    describe: Callable[[Sequence[Item]], str],
) -> Iterator[tuple[Item, Result | Exception]]:
    """Yield each item with its result of ``run``, which may be an error, or with its exception.

    If the batch exceeds GPU memory, its halves are run; after another failure, its items one by
    one. ``describe`` names a batch in messages.
    """
    results, error = _attempt(run, batch)
    if error is None:
        yield from zip(batch, results, strict=True)
        return
    out_of_memory = isinstance(error, torch.cuda.OutOfMemoryError)
    if out_of_memory:
        # Hypotheses (``tree.prefix``) form reference cycles and hold logits in GPU memory.
        gc.collect()
        torch.cuda.empty_cache()
    if len(batch) == 1:
        if out_of_memory:
            error = InputError(
                f"CUDA out of memory with {describe(batch)} alone; use a smaller beam_size or "
                "draft_width, cut it into segments, or decode with ngpu: 0"
            )
        yield batch[0], error
        return
    parts, middle = [[item] for item in batch], (len(batch) + 1) // 2
    if out_of_memory:
        logger.warning(
            f"CUDA out of memory with {describe(batch)}: halving the batch; lower "
            "max_batch_frames or batch_size to avoid failed attempts"
        )
        parts = [[*batch[:middle]], [*batch[middle:]]]
    else:
        logger.warning(
            f"a batch of {describe(batch)} failed: {one_line(error)}; trying them one by one"
        )
        log_traceback(error)
    for part in parts:
        yield from run_batch(run, part, describe)


def run_list(
    run: Callable[[Sequence[Item]], Sequence[Result]], items: Sequence[Item]
) -> list[Result]:
    """Return the result of each item, as ``run_batch``; raise InputError for the first failure.

    The error gives the item's place in the list.
    """

    def describe(batch: Sequence[tuple[int, Item]]) -> str:
        return f"{len(batch)} utterances" if len(batch) > 1 else f"utterance {batch[0][0]}"

    results, numbered = [], [*enumerate(items, 1)]
    for (number, _), result in run_batch(
        lambda batch: run([item for _, item in batch]), numbered, describe
    ):
        if isinstance(result, Exception):
            reason = f"utterance {number} of {len(items)}: {one_line(result)}"
            raise InputError(reason) from result
        results.append(result)
    return results


def _attempt(
    run: Callable[[Sequence[Item]], Sequence[Result | Exception]], batch: Sequence[Item]
) -> tuple[Sequence[Result | Exception], Exception | None]:
    try:
        return run(batch), None
    except torch.cuda.OutOfMemoryError as error:
        return [], torch.cuda.OutOfMemoryError(str(error))  # without a traceback, which has tensors
    except Exception as error:  # any error: continue with the other items
        return [], error
