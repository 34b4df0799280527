"""Inputs and outputs that contestants share."""

from collections.abc import Sequence

import numpy as np


def pad_memories(memories: Sequence[np.ndarray]) -> np.ndarray:
    """U times (S, D) to (U, S, D), zeros behind the shorter ones."""
    longest = max(map(len, memories))
    padded = np.zeros((len(memories), longest, memories[0].shape[1]), np.float32)
    for row, memory in zip(padded, memories, strict=True):
        row[: len(memory)] = memory
    return padded


def until_end(tokens: Sequence[int], eos: int) -> list[int]:
    """What stands before the end symbol."""
    tokens = [*tokens]
    return tokens[: tokens.index(eos)] if eos in tokens else tokens
