"""Form batches of utterances."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from espnet_medusa.inference.longform.draft_text import DraftText
from espnet_medusa.inference.longform.window import FRAMES_PER_S

POOL_BATCHES = 24
POOL_BYTES = 1 << 28  # 70 minutes at 16 kHz; two pools are in memory at once


@dataclass(frozen=True)
class Utterance:
    key: str  # utterance id
    speech: np.ndarray  # (samples,) in [-1, 1], or features (frames, D)
    frames: int  # frames of 10 ms, including padding to the encoder's window
    language: str | None = None  # code for the prompt; None: that of the decode options
    previous_text: str | None = None  # for OWSM's prompt
    draft_text: DraftText | None = None  # a text that may be right; None: unknown


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


def join_batches(batches: Sequence[Sequence[int]], count: int) -> Iterator[tuple[list[int], int]]:
    """Yield so many batches as one, with the number of utterances that are decoded together."""
    for first in range(0, len(batches), count):
        joined = batches[first : first + count]
        # The first batch has the longest utterances, and thus the fewest.
        yield [index for batch in joined for index in batch], len(joined[0])


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


def describe(utterances: Sequence[Utterance]) -> str:
    """Return the size of a batch, for messages."""
    longest = max(utterance.frames for utterance in utterances)
    if len(utterances) == 1:
        return f"this utterance ({longest / FRAMES_PER_S:.2f} s)"
    total = len(utterances) * longest
    return f"{len(utterances)} utterances of up to {longest} frames ({total} in total)"
