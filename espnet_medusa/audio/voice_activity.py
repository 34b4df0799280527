"""Where somebody speaks: Silero's detector, whose network comes with its package.

https://github.com/snakers4/silero-vad (MIT licence). It hears 16 kHz in steps of 32 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_above, check_at_least

RATE_HZ = 16000
CHUNK_S = 1.0, 30.0


@dataclass(frozen=True)
class VadParameters:
    """How speech is found, by faster-whisper's names and with its defaults for batches.

    But for short speech: clicks would count, and a Whisper makes words of them.

    Raises:
        InputError: A value is not allowed.
    """

    threshold: float = 0.5  # probability from which on it is speech
    neg_threshold: float | None = None  # below which speech ends; None: 0.15 less
    min_speech_duration_ms: float = 100  # shorter speech is none
    max_speech_duration_s: float | None = None  # of what is decoded at once; None: the window
    min_silence_duration_ms: float = 160  # shorter pauses are part of the speech
    speech_pad_ms: float = 400  # heard before and behind it

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float) and (value, field.default) != (None, None):
                raise InputError(f"vad_parameters: {field.name}: {value}; allowed: a number")
        check_above(self.threshold, 0, "vad_parameters: threshold", at_most=1)
        if self.neg_threshold is not None:
            where = "vad_parameters: neg_threshold"
            check_above(self.neg_threshold, 0, where, at_most=self.threshold)
        for name in ("min_speech_duration_ms", "min_silence_duration_ms", "speech_pad_ms"):
            check_at_least(getattr(self, name), 0, f"vad_parameters: {name}")
        longest_s, (least_s, most_s) = self.max_speech_duration_s, CHUNK_S
        if longest_s is not None and not least_s <= longest_s <= most_s:
            raise InputError(
                f"vad_parameters: max_speech_duration_s: {longest_s}; allowed: {least_s:g} to "
                f"{most_s:g}, which a Whisper hears at a time"
            )


@cache
def _load() -> tuple[Any, Callable[..., list[dict[str, int]]]]:
    """The network, and what finds speech by it."""
    num_threads = torch.get_num_threads()
    import silero_vad  # takes a while, and sets torch to one thread

    torch.set_num_threads(num_threads)
    return silero_vad.load_silero_vad(sequence=True), silero_vad.get_speech_timestamps_sequence


class SpeechDetector:
    """Finds speech.

    Args:
        parameters: What counts as speech.
        longest_s: No stretch of it is longer; cut at its longest pause where there is one.
    """

    def __init__(self, parameters: VadParameters, longest_s: float):
        self.network, self.find = _load()
        self.options = {
            "threshold": parameters.threshold,
            "neg_threshold": parameters.neg_threshold,
            "min_speech_duration_ms": parameters.min_speech_duration_ms,
            "max_speech_duration_s": longest_s,
            "min_silence_duration_ms": parameters.min_silence_duration_ms,
            "speech_pad_ms": 0,
        }

    def __call__(self, samples: np.ndarray | torch.Tensor) -> list[tuple[float, float]]:
        """Starts and ends in s, in order, of (samples,) in [-1, 1] at 16 kHz."""
        found = self.find(samples, self.network, **self.options)
        return [(one["start"] / RATE_HZ, one["end"] / RATE_HZ) for one in found]
