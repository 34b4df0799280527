"""Batches of a decoding job: which utterances go together, and what happens when one fails."""

import gc
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.inference.decoding import Decoding

logger = logging.getLogger(__name__)

FRAMES_PER_S = 100
POOL_BATCHES = 24
POOL_BYTES = 1 << 28  # 70 minutes at 16 kHz; two pools live while the next one is read

Decode = Callable[[Sequence[np.ndarray], Sequence[str | None]], list[Decoding]]


@dataclass(frozen=True)
class Utterance:
    """What is read and waits to be decoded.

    Attributes:
        key: Utterance id.
        speech: (samples,) in [-1, 1].
        frames: Frames of 10 ms that the encoder reads of it, its own padding included.
        language: Code for Whisper's prompt; None: the search's own.
    """

    key: str
    speech: np.ndarray
    frames: int
    language: str | None = None


def make_batches(
    lengths: Sequence[int], batch_size: int, max_frames: int | None = None
) -> list[list[int]]:
    """Put like lengths together, the longest first.

    Args:
        lengths: Frames of each utterance.
        batch_size: Most utterances of a batch.
        max_frames: Most frames of a batch, rows times its longest; None: no limit. An utterance
            that is longer is a batch of its own.

    Returns:
        Batches of indices, each index once; equal lengths keep their order.
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
    """Read ahead as far as sorting needs: bounded memory, however long the list.

    Args:
        utterances: Read one by one, when asked for.
        batch_size: A pool holds ``POOL_BATCHES`` times as many utterances, fewer when it reaches
            ``POOL_BYTES``. With 1 there is nothing to sort, and nothing is read ahead.

    Yields:
        Pools of utterances, the longest first.
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
    # Where the encoder pads all to the same frames, samples still tell long texts from short ones.
    return sorted(pool, key=lambda utterance: len(utterance.speech), reverse=True)


def decode_together(
    decode: Decode, utterances: Sequence[Utterance]
) -> Iterator[tuple[Utterance, Decoding | Exception]]:
    """Decode a batch; smaller ones when it does not fit into memory or one of it fails.

    Args:
        decode: Decodes several utterances together.
        utterances: The batch.

    Yields:
        Each utterance with its result or with the reason why it has none.
    """
    decodings, error = _attempt(decode, utterances)
    if error is None:
        yield from zip(utterances, decodings, strict=True)
    elif isinstance(error, torch.cuda.OutOfMemoryError):
        # Drafted prefixes refer to each other in circles and hold logits.
        gc.collect()
        torch.cuda.empty_cache()
        yield from _halve(decode, utterances)
    elif len(utterances) == 1:
        yield utterances[0], error
    else:
        logger.warning(
            f"a batch of {len(utterances)} utterances failed: {one_line(error)}; they are decoded "
            "one by one"
        )
        log_traceback(error)
        for utterance in utterances:
            yield from decode_together(decode, [utterance])


def _attempt(
    decode: Decode, utterances: Sequence[Utterance]
) -> tuple[list[Decoding], Exception | None]:
    try:
        speeches, languages = zip(*((u.speech, u.language) for u in utterances), strict=True)
        return decode(speeches, languages), None
    except torch.cuda.OutOfMemoryError as error:
        # A new one: the traceback would keep the tensors alive that have to go.
        return [], torch.cuda.OutOfMemoryError(str(error))
    except Exception as error:  # whatever it was, the others go on
        return [], error


def _halve(
    decode: Decode, utterances: Sequence[Utterance]
) -> Iterator[tuple[Utterance, Decoding | Exception]]:
    longest = max(utterance.frames for utterance in utterances)
    if len(utterances) == 1:
        reason = (
            f"CUDA out of memory with this utterance alone ({longest / FRAMES_PER_S:.2f} s); use "
            "a smaller beam_size or draft_width, cut it into segments, or decode with ngpu: 0"
        )
        yield utterances[0], InputError(reason)
        return
    middle = (len(utterances) + 1) // 2
    logger.warning(
        f"CUDA out of memory with {len(utterances)} utterances of up to {longest} frames "
        f"({len(utterances) * longest} together): the batch is halved; lower max_batch_frames "
        "or batch_size to save the failed attempts"
    )
    for half in (utterances[:middle], utterances[middle:]):
        yield from decode_together(decode, half)


def one_line(error: Exception) -> str:
    """First line of an error's message; its class too, where the user is not meant to know."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0] if lines else 'failed'}" + (
        "" if isinstance(error, ValueError) else f" ({type(error).__name__})"
    )


def log_traceback(error: Exception) -> None:
    """Log where an error came from, unless it is one that its message explains."""
    if not isinstance(error, ValueError):
        logger.error("".join(traceback.format_exception(error)))
