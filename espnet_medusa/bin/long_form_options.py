"""Options of long audio on command lines and in configs, by the names that others have."""

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from espnet2.utils.nested_dict_action import NestedDictAction
from espnet2.utils.types import float_or_none, str_or_none

from espnet_medusa.audio.voice_activity import VadParameters
from espnet_medusa.bin.command_line import positive, str2bool
from espnet_medusa.longform.options import WORD_TIMES, LongFormOptions
from espnet_medusa.options import build_options

DEFAULTS = {field.name: field.default for field in dataclasses.fields(LongFormOptions)}


def add_long_form_options(parser: argparse.ArgumentParser, **default: Any) -> None:
    """Add the options.

    Args:
        parser: To add to.
        default: ``default=VALUE`` in place of openai-whisper's; that of ``without_timestamps`` is
            None, as each command has its own.
    """
    add = parser.add_argument_group("Long audio").add_argument
    for name, value in (DEFAULTS | {"without_timestamps": None}).items():
        kind = {"type": TYPES.get(name), "default": value}
        if name == "vad_parameters":
            kind = {"action": NestedDictAction, "default": {}, "metavar": "NAME=VALUE"}
        add(f"--{name}", help=HELP[name], **kind | default)


def read_long_form_options(options: Mapping[str, Any]) -> LongFormOptions:
    """Those of a command line or a config.

    Raises:
        InputError: A value is not allowed.
    """
    values = {name: options[name] for name in DEFAULTS}
    values["without_timestamps"] = bool(values["without_timestamps"])
    given = values["clip_timestamps"] or ()  # a config may have a number
    values["clip_timestamps"] = (given,) if isinstance(given, int | float) else tuple(given)
    return build_options(LongFormOptions, values, "long audio")


def clips(value: str) -> tuple[float, ...]:
    """Parse seconds with commas between them.

    Raises:
        ValueError: Something else.
    """
    return tuple(float(part) for part in value.split(",") if part.strip())


TYPES = {
    "condition_on_previous_text": str2bool,
    "initial_prompt": str_or_none,
    "carry_initial_prompt": str2bool,
    "temperature": float,
    "temperature_increment_on_fallback": float_or_none,
    "best_of": positive,
    "compression_ratio_threshold": float_or_none,
    "logprob_threshold": float_or_none,
    "no_speech_threshold": float_or_none,
    "clip_timestamps": clips,
    "without_timestamps": str2bool,
    "max_initial_timestamp": float_or_none,
    "word_timestamps": str2bool,
    "word_times": str,
    "prepend_punctuations": str,
    "append_punctuations": str,
    "hallucination_silence_threshold": float_or_none,
    "vad_filter": str2bool,
}
HELP = {
    "condition_on_previous_text": "the text of the window before is a window's prompt",
    "initial_prompt": "text before the first window, such as names that come up",
    "carry_initial_prompt": "the same text before every window",
    "temperature": "of the first attempt at a window; above 0 tokens are drawn",
    "temperature_increment_on_fallback": "how much hotter each further attempt is, up to 1; none: "
    "there is one attempt",
    "best_of": "texts drawn in an attempt above temperature 0, of which the likeliest counts",
    "compression_ratio_threshold": "a text that zlib makes so much shorter repeats itself: another "
    "attempt; none: it stands",
    "logprob_threshold": "a text whose tokens' mean log-probability is below: another attempt",
    "no_speech_threshold": "above this probability of silence an improbable text is left out",
    "clip_timestamps": "start,end,start,... in seconds: what is decoded; default: all",
    "without_timestamps": "a segment for each window; transcribe's default: true for short audio "
    "to txt",
    "max_initial_timestamp": "in seconds: the first segment of a window starts by then",
    "word_timestamps": "when each word is said, too",
    "word_times": f"what says when words are said: {' or '.join(WORD_TIMES)}; the decoder's "
    "attention, or the model's CTC branch",
    "prepend_punctuations": "punctuation that belongs to the word behind it",
    "append_punctuations": "punctuation that belongs to the word before it",
    "hallucination_silence_threshold": "with words: a text that looks made up between so many "
    "seconds of silence is left out",
    "vad_filter": "decode chunks of speech, batch_size of them together; what is no speech is left "
    "out",
    "vad_parameters": "how speech is found, as often as there is something to say: "
    + ", ".join(field.name for field in dataclasses.fields(VadParameters)),
}
