"""Options of long audio, by openai-whisper's names."""

from __future__ import annotations

import math
from dataclasses import dataclass

from espnet_medusa.errors import InputError
from espnet_medusa.options import check_above, check_at_least

HOTTEST = 1.0  # where falling back ends


@dataclass(frozen=True)
class LongFormOptions:
    """How windows follow each other, and when one is decoded again.

    Raises:
        InputError: A value is not allowed.
    """

    condition_on_previous_text: bool = True  # the window before is a window's prompt
    initial_prompt: str | None = None  # text before the first window
    carry_initial_prompt: bool = False  # the same before every window
    temperature: float = 0.0  # of the first attempt; above 0 tokens are drawn
    temperature_increment_on_fallback: float | None = 0.2  # of each further one, up to 1; None: one
    best_of: int = 1  # texts drawn in an attempt above temperature 0; the likeliest counts
    compression_ratio_threshold: float | None = 2.4  # a text above it has failed
    logprob_threshold: float | None = -1.0  # average log-probability below which a text has failed
    no_speech_threshold: float | None = 0.6  # above it a text that has failed is silence
    clip_timestamps: tuple[float, ...] = ()  # start, end, start, ... in s; the last end may miss
    without_timestamps: bool = False  # a segment for each window
    max_initial_timestamp: float | None = 1.0  # s; latest start of a window's first segment

    word_timestamps: bool = False  # when each word is said
    prepend_punctuations: str = "\"'“¿([{-"  # that belong to the word behind them
    append_punctuations: str = "\"'.。,，!！?？:：”)]}、"  # to the word before them
    hallucination_silence_threshold: float | None = None  # s around a made-up text, with words

    def __post_init__(self) -> None:
        check_at_least(self.temperature, 0, "temperature")
        check_at_least(self.best_of, 1, "best_of")
        if self.temperature_increment_on_fallback is not None:
            check_above(
                self.temperature_increment_on_fallback, 0, "temperature_increment_on_fallback"
            )
        if self.max_initial_timestamp is not None:
            check_at_least(self.max_initial_timestamp, 0, "max_initial_timestamp")
        silence_s = self.hallucination_silence_threshold
        if silence_s is not None:
            check_at_least(silence_s, 0, "hallucination_silence_threshold")
            if not self.word_timestamps:
                raise InputError(
                    f"hallucination_silence_threshold: {silence_s}; allowed with word_timestamps: "
                    "true, whose times it needs"
                )
        clips = self.clip_timestamps
        if [*clips] != sorted(clips) or any(not 0 <= clip < math.inf for clip in clips):
            raise InputError(
                f"clip_timestamps: {','.join(map(str, clips))}; allowed: start,end,start,end,... "
                "in seconds from 0 on, none before the one before it"
            )

    @property
    def temperatures(self) -> list[float]:
        """Of all attempts."""
        step = self.temperature_increment_on_fallback
        if step is None:
            return [self.temperature]
        count = max(math.floor((HOTTEST + 1e-6 - self.temperature) / step), 0)
        return [self.temperature + attempt * step for attempt in range(count + 1)]

    @property
    def needs_windows(self) -> bool:
        """Whether it asks of short audio, too, what only the moving window does."""
        asked = self.initial_prompt is not None, self.temperature > 0, self.clip_timestamps
        return any((*asked, self.word_timestamps))
