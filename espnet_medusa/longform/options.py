"""Options of long audio, by openai-whisper's names; of voice activity by faster-whisper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espnet_medusa.audio.voice_activity import VadParameters
from espnet_medusa.errors import InputError
from espnet_medusa.options import build_options, check_above, check_at_least, check_choice

HOTTEST = 1.0  # where falling back ends
ATTENTION, CTC = WORD_TIMES = "attention", "ctc"


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
    clip_timestamps: Sequence[float] = ()  # start, end, start, ... in s; the last end may miss
    without_timestamps: bool = False  # a segment for each window
    max_initial_timestamp: float | None = 1.0  # s; latest start of a window's first segment

    word_timestamps: bool = False  # when each word is said
    word_times: str = ATTENTION  # of the decoder, or by the CTC branch
    prepend_punctuations: str = "\"'“¿([{-"  # that belong to the word behind them
    append_punctuations: str = "\"'.。,，!！?？:：”)]}、"  # to the word before them
    hallucination_silence_threshold: float | None = None  # s around a made-up text, with words

    vad_filter: bool = False  # chunks of speech, which do not wait for each other
    vad_parameters: VadParameters | Mapping[str, Any] | None = (
        VadParameters()
    )  # how speech is found

    def __post_init__(self) -> None:
        self._check_voice_activity()
        check_at_least(self.temperature, 0, "temperature")
        check_at_least(self.best_of, 1, "best_of")
        if self.temperature_increment_on_fallback is not None:
            check_above(
                self.temperature_increment_on_fallback, 0, "temperature_increment_on_fallback"
            )
        if self.max_initial_timestamp is not None:
            check_at_least(self.max_initial_timestamp, 0, "max_initial_timestamp")
        self._check_words()
        clips = self.clip_timestamps
        if [*clips] != sorted(clips) or any(not 0 <= clip < math.inf for clip in clips):
            raise InputError(
                f"clip_timestamps: {','.join(map(str, clips))}; allowed: start,end,start,end,... "
                "in seconds from 0 on, none before the one before it"
            )

    def _check_words(self) -> None:
        check_choice(self.word_times, WORD_TIMES, "word_times")
        if self.word_times != ATTENTION and not self.word_timestamps:
            raise InputError(
                f"word_times: {self.word_times}; allowed with word_timestamps: true, which asks "
                "for them"
            )
        silence_s = self.hallucination_silence_threshold
        if silence_s is not None:
            check_at_least(silence_s, 0, "hallucination_silence_threshold")
            if not self.word_timestamps:
                raise InputError(
                    f"hallucination_silence_threshold: {silence_s}; allowed with word_timestamps: "
                    "true, whose times it needs"
                )
            if self.word_times != ATTENTION:
                raise InputError(
                    f"hallucination_silence_threshold: {silence_s}; allowed with word_times: "
                    f"{ATTENTION}, as its rule takes words as short as CTC's for made up"
                )

    def _check_voice_activity(self) -> None:
        given = self.vad_parameters
        if not isinstance(given, VadParameters):
            given = build_options(VadParameters, given, "vad_parameters")
            object.__setattr__(self, "vad_parameters", given)
        if given != VadParameters() and not self.vad_filter:
            values = ", ".join(f"{name}={value}" for name, value in vars(given).items())
            raise InputError(f"vad_parameters: {values}; allowed with vad_filter: true")

    @property
    def temperatures(self) -> list[float]:
        """Of all attempts."""
        step = self.temperature_increment_on_fallback
        if step is None:
            return [self.temperature]
        count = max(math.floor((HOTTEST + 1e-6 - self.temperature) / step), 0)
        return [self.temperature + attempt * step for attempt in range(count + 1)]

    @property
    def needs_decoder_module(self) -> bool:
        """Whether the trained decoder itself is asked, beside what a search has made of it."""
        return self.word_timestamps and self.word_times == ATTENTION

    @property
    def needs_windows(self) -> bool:
        """Whether it asks of short audio, too, what only the moving window does."""
        asked = self.initial_prompt is not None, self.temperature > 0, self.clip_timestamps
        return any((*asked, self.word_timestamps, self.vad_filter))
