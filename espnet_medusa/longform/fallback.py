"""When a window is decoded again at a higher temperature, and when it is silence.

Radford et al., arXiv 2212.04356, 4.5, with openai-whisper's conditions.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from espnet_medusa.longform.options import LongFormOptions


@dataclass(frozen=True)
class WindowDecoding:
    """What one attempt at a window gave.

    Attributes:
        tokens: Without prompt and end symbol.
        text: Of the tokens, without timestamps.
        temperature: Of the attempt.
        average_log_probability: Of the tokens and the end symbol, among what might come.
        no_speech_probability: That the decoder gives to silence behind the start of the transcript.
    """

    tokens: tuple[int, ...]
    text: str
    temperature: float
    average_log_probability: float
    no_speech_probability: float

    @property
    def log_probability(self) -> float:
        """Of the tokens and the end symbol together."""
        return self.average_log_probability * (len(self.tokens) + 1)

    @property
    def compression_ratio(self) -> float:
        """How much shorter zlib makes the text: texts that repeat themselves are much so."""
        text = self.text.strip().encode("utf-8")
        return len(text) / len(zlib.compress(text))


def has_failed(decoding: WindowDecoding, options: LongFormOptions) -> bool:
    """Whether another attempt is due: the text repeats itself, or is improbable and no silence."""
    ratio, least = options.compression_ratio_threshold, options.logprob_threshold
    improbable = least is not None and decoding.average_log_probability < least
    if improbable and _hears_nothing(decoding, options):
        return False
    return improbable or (ratio is not None and decoding.compression_ratio > ratio)


def is_silence(decoding: WindowDecoding, options: LongFormOptions) -> bool:
    """Whether the window is left out: no speech is probable, and no text is."""
    least = options.logprob_threshold
    probable = least is not None and decoding.average_log_probability > least
    return _hears_nothing(decoding, options) and not probable


def _hears_nothing(decoding: WindowDecoding, options: LongFormOptions) -> bool:
    most = options.no_speech_threshold
    return most is not None and decoding.no_speech_probability > most
