"""Form batches of utterances, and decode them in smaller batches after a failure."""

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from espnet_medusa.errors import InputError, first_line
from espnet_medusa.inference.decoding import Decoding
from espnet_medusa.longform.window import FRAMES_PER_S
from espnet_medusa.runtime.process import free_gpu_memory, without_tensors

logger = logging.getLogger(__name__)

POOL_BATCHES = 24
POOL_BYTES = 1 << 28  # 70 minutes at 16 kHz; two pools are in memory at once


@dataclass(frozen=True)
class Utterance:
    key: str  # utterance id
    speech: np.ndarray  # (samples,) in [-1, 1], or features (frames, D)
    frames: int  # frames of 10 ms, including padding to the encoder's window
    language: str | None = None  # code for the prompt; None: that of the decode options
    previous_text: str | None = None  # for OWSM's prompt


Decode = Callable[[Sequence[Utterance]], list[Decoding]]


def make_batches(
    lengths: Sequence[int], batch_size: int, max_frames: int | None = None
) -> list[list[int]]:
    """Return the indices of each batch, longest first; equal lengths keep their order.

    Args:
        max_frames: Maximum padded size, utterances times frames of the longest; None: no limit.
            An utterance with more frames is decoded alone.
    """
    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if room == 0:
            batches.append([])
            room = batch_size
            if max_frames is not None and lengths[index]:
                room = max(min(room, max_frames // lengths[index]), 1)
        batches[-1].append(index)
        room -= 1
    return batches


def read_pools(utterances: Iterable[Utterance], batch_size: int) -> Iterator[list[Utterance]]:
    """Read utterances ahead, one at a time, into sorted pools: the longest utterance is first.

    A pool has at most ``POOL_BATCHES`` times ``batch_size`` utterances, and at most one more than
    fit in ``POOL_BYTES``. With batch size 1 a pool is one utterance.
    """
    most = 1 if batch_size == 1 else POOL_BATCHES * batch_size
    pool, size = [], 0
    for utterance in utterances:
        pool.append(utterance)
        size += utterance.speech.nbytes
        if len(pool) == most or size >= POOL_BYTES:
            yield _by_length(pool)
            pool, size = [], 0
    if pool:
        yield _by_length(pool)


def _by_length(pool: Sequence[Utterance]) -> list[Utterance]:
    # By samples: if the encoder pads to its window, all have the same number of frames.
    return sorted(pool, key=lambda utterance: len(utterance.speech), reverse=True)


def decode_together(
    decode: Decode, utterances: Sequence[Utterance]
) -> Iterator[tuple[Utterance, Decoding | Exception]]:
    """Decode a batch; decode smaller batches if it exceeds GPU memory or an utterance fails.

    Yield each utterance with its result or its error.
    """
    decodings, error = _attempt(decode, utterances)
    if error is None:
        yield from zip(utterances, decodings, strict=True)
        return
    longest = max(utterance.frames for utterance in utterances)
    out_of_memory = isinstance(error, torch.cuda.OutOfMemoryError)
    if out_of_memory:
        free_gpu_memory()
    if len(utterances) == 1:
        if out_of_memory:
            error = InputError(
                f"CUDA out of memory with this utterance alone ({longest / FRAMES_PER_S:.2f} s); "
                "use a smaller beam_size or draft_width, cut it into segments, or decode with "
                "ngpu: 0"
            )
        yield utterances[0], error
        return
    parts, middle = [[utterance] for utterance in utterances], (len(utterances) + 1) // 2
    if out_of_memory:
        logger.warning(
            f"CUDA out of memory with {len(utterances)} utterances of up to {longest} frames "
            f"({len(utterances) * longest} in total): halving the batch; lower max_batch_frames "
            "or batch_size to avoid failed attempts"
        )
        parts = [utterances[:middle], utterances[middle:]]
    else:
        logger.warning(
            f"a batch of {len(utterances)} utterances failed: {one_line(error)}; decoding them one "
            "by one"
        )
        log_traceback(error)
    for part in parts:
        yield from decode_together(decode, part)


def _attempt(
    decode: Decode, utterances: Sequence[Utterance]
) -> tuple[list[Decoding], Exception | None]:
    try:
        return decode(utterances), None
    except Exception as error:  # any error: continue with the other utterances
        return [], without_tensors(error)


def one_line(error: Exception) -> str:
    """Return the first line of an error's message, with the class unless it is a user error."""
    message = first_line(error)
    return message if isinstance(error, ValueError) else f"{message} ({type(error).__name__})"


def log_traceback(error: Exception) -> None:
    """Log the traceback of an error, unless it is a user error."""
    if not isinstance(error, ValueError):
        logger.error("".join(traceback.format_exception(error)))
