"""Options of long audio (openai-whisper's names) and voice activity (faster-whisper's)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from espnet_medusa.data.audio.voice_activity import VadParameters
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import (
    build_options,
    check_at_least,
    check_choice,
    check_finite,
    option,
)

# Groups of options in the help of commands.
WINDOWS, FALLBACK = "Prompts and windows", "Fallback"
SILENCE, WORDS = "Silence", "Word times"
HOTTEST = 1.0  # maximum temperature of further attempts
ATTENTION, CTC = WORD_TIMES = "attention", "ctc"
# Punctuation that belongs to the following and to the previous word.
PREPENDED, APPENDED = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
ANY_FAILURE, REPETITION = FALLBACK_ON = "any_failure", "repetition"


@dataclass(frozen=True)
class LongFormOptions:
    """Prompts, fallback, timestamps, word times and voice activity detection.

    Raises InputError for a value that is not allowed.
    """

    condition_on_previous_text: bool = option(
        True, "use the preceding text of the recording as prompt of each window", group=WINDOWS
    )
    initial_prompt: str | None = option(
        None, "prompt of the first window, such as names in the recording", group=WINDOWS
    )
    carry_initial_prompt: bool = option(
        False, "use initial_prompt in the prompt of every window", group=WINDOWS
    )
    temperature: float = option(
        0.0,
        "temperature of the first attempt at a window; above 0 tokens are sampled",
        group=FALLBACK,
    )
    temperature_increment_on_fallback: float | None = option(
        0.2,
        "increase of the temperature in each further attempt, up to 1; none or 0: one attempt",
        group=FALLBACK,
    )
    best_of: int | None = option(
        1,
        "texts sampled in an attempt above temperature 0, of which the most probable is taken; "
        "none: 1",
        group=FALLBACK,
    )
    compression_ratio_threshold: float | None = option(
        2.4,
        "a text with a higher zlib compression ratio repeats itself and is decoded again",
        group=FALLBACK,
    )
    logprob_threshold: float | None = option(
        -1.0,
        "decode again below this mean log-probability per token (fallback_on: any_failure)",
        group=FALLBACK,
    )
    no_speech_threshold: float | None = option(
        0.6,
        "above this no-speech probability, a text below logprob_threshold is dropped",
        group=FALLBACK,
    )
    fallback_on: str = option(
        ANY_FAILURE,
        "which texts are decoded again at a higher temperature: any_failure (repetitive or "
        "improbable ones, as openai-whisper) or repetition (those that repeat themselves)",
        group=FALLBACK,
    )
    clip_timestamps: Sequence[float] = option(
        (), "start,end,start,... in seconds: decode only these clips; default: all", group=WINDOWS
    )
    without_timestamps: bool | None = option(
        False,
        "decode each window as one segment; none: only if the recording fits in the window",
        group=WINDOWS,
    )
    language_detection_segments: int = option(
        1, "windows with speech in which language: detect detects the language", group=WINDOWS
    )
    multilingual: bool = option(
        False,
        "with language: detect, detect the language of each window, for recordings in several "
        "languages",
        group=WINDOWS,
    )
    skip_silence: bool = option(
        False,
        "detect voice activity: windows without speech are left out, long pauses merged, and texts "
        "without timestamps that end early continued",
        group=SILENCE,
    )
    max_initial_timestamp: float | None = option(
        1.0, "latest start of a window's first segment, in seconds", group=WINDOWS
    )

    word_timestamps: bool = option(False, "compute the time of each word", group=WORDS)
    word_times: str = option(
        ATTENTION,
        "source of word times: attention (of the decoder) or ctc (the model's CTC branch)",
        group=WORDS,
    )
    prepend_punctuations: str = option(
        PREPENDED, "punctuation that belongs to the following word", group=WORDS
    )
    append_punctuations: str = option(
        APPENDED, "punctuation that belongs to the previous word", group=WORDS
    )
    hallucination_silence_threshold: float | None = option(
        None,
        "with word_timestamps: drop a text that looks hallucinated between silences that are "
        "longer than this many seconds",
        group=WORDS,
    )

    vad_filter: bool = option(
        False, "decode only chunks of speech, batch_size of them together", group=SILENCE
    )
    vad_parameters: VadParameters | Mapping[str, Any] | None = option(
        VadParameters(),
        "parameter of voice activity detection; repeat the option for several; names: "
        + ", ".join(field.name for field in fields(VadParameters)),
        group=SILENCE,
    )

    def __post_init__(self) -> None:
        check_finite(vars(self))
        self._check_voice_activity()
        check_at_least(self.temperature, 0, "temperature")
        if self.best_of is None:
            object.__setattr__(self, "best_of", 1)
        check_at_least(self.best_of, 1, "best_of")
        check_at_least(self.language_detection_segments, 1, "language_detection_segments")
        check_choice(self.fallback_on, FALLBACK_ON, "fallback_on")
        step = self.temperature_increment_on_fallback
        if step is not None:
            check_at_least(step, 0, "temperature_increment_on_fallback")
        if self.max_initial_timestamp is not None:
            check_at_least(self.max_initial_timestamp, 0, "max_initial_timestamp")
        self._check_words()
        clips = self.clip_timestamps
        if [*clips] != sorted(clips) or any(not 0 <= clip < math.inf for clip in clips):
            raise InputError(
                f"clip_timestamps: {','.join(map(str, clips))}; allowed: start,end,start,end,... "
                "in seconds from 0, in ascending order"
            )

    def _check_words(self) -> None:
        check_choice(self.word_times, WORD_TIMES, "word_times")
        if self.word_times != ATTENTION and not self.word_timestamps:
            raise InputError(f"word_times: {self.word_times}; allowed with word_timestamps: true")
        silence_s, name = self.hallucination_silence_threshold, "hallucination_silence_threshold"
        if silence_s is not None:
            check_at_least(silence_s, 0, name)
            if not self.word_timestamps:
                raise InputError(f"{name}: {silence_s}; allowed with word_timestamps: true")
            if self.word_times != ATTENTION:
                raise InputError(
                    f"{name}: {silence_s}; allowed with word_times: {ATTENTION}, as words by CTC "
                    "are as short as hallucinated ones"
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
        """Temperatures of all attempts."""
        step = self.temperature_increment_on_fallback
        if not step:
            return [self.temperature]
        count = max(math.floor((HOTTEST + 1e-6 - self.temperature) / step), 0)
        return [self.temperature + attempt * step for attempt in range(count + 1)]

    @property
    def detects_speech(self) -> bool:
        """Whether voice activity is detected."""
        return self.skip_silence or self.vad_filter

    @property
    def needs_decoder_module(self) -> bool:
        """Whether word times use the decoder's module in addition to its runtime."""
        return self.word_timestamps and self.word_times == ATTENTION

    @property
    def needs_windows(self) -> bool:
        """Whether short audio also needs the sliding window."""
        prompt, timed = self.initial_prompt is not None, self.without_timestamps is False
        sampled, words = self.temperature > 0, self.word_timestamps
        parts = self.clip_timestamps, self.vad_filter, self.multilingual
        return any((prompt, timed, sampled, words, *parts))
