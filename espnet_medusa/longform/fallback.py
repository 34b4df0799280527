"""Conditions for another attempt at a higher temperature, and for silence.

Radford et al., arXiv 2212.04356, 4.5, with openai-whisper's conditions.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from espnet_medusa.longform.options import LongFormOptions


@dataclass(frozen=True)
class WindowDecoding:
    """The result of one attempt at a window."""

    tokens: tuple[int, ...]  # without prompt and end symbol
    text: str  # of the tokens, without timestamps
    temperature: float  # of the attempt
    average_log_probability: float  # of the tokens and the end symbol
    no_speech_probability: float  # of the no-speech token after the start of the transcript

    @property
    def log_probability(self) -> float:
        """Sum over the tokens and the end symbol."""
        return self.average_log_probability * (len(self.tokens) + 1)

    @property
    def compression_ratio(self) -> float:
        """zlib's; repetitive texts have a high one."""
        text = self.text.strip().encode("utf-8")
        return len(text) / len(zlib.compress(text))


def has_failed(decoding: WindowDecoding, options: LongFormOptions) -> bool:
    """Return whether the text is repetitive, or improbable without being silence."""
    ratio, least = options.compression_ratio_threshold, options.logprob_threshold
    improbable = least is not None and decoding.average_log_probability < least
    if improbable and _is_probably_silence(decoding, options):
        return False
    return improbable or (ratio is not None and decoding.compression_ratio > ratio)


def is_silence(decoding: WindowDecoding, options: LongFormOptions) -> bool:
    """Return whether the window is left out: silence is probable and the text is not."""
    least = options.logprob_threshold
    probable = least is not None and decoding.average_log_probability > least
    return _is_probably_silence(decoding, options) and not probable


def _is_probably_silence(decoding: WindowDecoding, options: LongFormOptions) -> bool:
    most = options.no_speech_threshold
    return most is not None and decoding.no_speech_probability > most
