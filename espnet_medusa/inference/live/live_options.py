"""Options of live transcription, in addition to ``LongFormOptions``."""

from dataclasses import dataclass

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import (
    check_above,
    check_at_least,
    check_choice,
    check_finite,
    option,
)
from espnet_medusa.inference.longform.long_form_options import LongFormOptions

GROUP = "Live"
AGREEMENT, ATTENTION = POLICIES = "agreement", "attention"


@dataclass(frozen=True)
class LiveOptions:
    """When a live transcription is updated, and when its words are confirmed.

    Raises InputError for a value that is not allowed.
    """

    update_seconds: float = option(
        0.5, "least audio in s between two updates of the text", group=GROUP
    )
    live_policy: str = option(
        AGREEMENT,
        "words are confirmed if the last live_agreement updates agree on them (agreement), or if "
        "the decoder's attention to them ends live_margin s before the end of the audio "
        "(attention)",
        group=GROUP,
    )
    live_agreement: int = option(3, "number of updates that agree on a word", group=GROUP)
    live_margin: float = option(0.6, "audio in s that follows a confirmed word", group=GROUP)
    pause_seconds: float = option(
        0.6, "a pause of this many s confirms all words; needs skip_silence: true", group=GROUP
    )
    buffer_seconds: float = option(
        15.0, "longer audio in s is shortened by its confirmed words", group=GROUP
    )
    live_prompt_tokens: int = option(
        200, "most tokens of the text before the audio that are its prompt", group=GROUP
    )

    def __post_init__(self) -> None:
        check_finite(vars(self))
        check_choice(self.live_policy, POLICIES, "live_policy")
        check_at_least(self.live_agreement, 1, "live_agreement")
        check_at_least(self.live_prompt_tokens, 0, "live_prompt_tokens")
        for name in ("live_margin", "pause_seconds"):
            check_at_least(getattr(self, name), 0, name)
        check_above(self.update_seconds, 0, "update_seconds", at_most=30)
        check_above(self.buffer_seconds, 1, "buffer_seconds", at_most=30)


# Options of files that live transcription does not have.
OF_FILES = (
    "carry_initial_prompt", "clip_timestamps", "multilingual", "vad_filter", "temperature",
    "hallucination_silence_threshold",
)  # fmt: skip


def check_live(options: LongFormOptions) -> None:
    """Raise InputError for options that live transcription does not have."""
    for name in OF_FILES:
        if getattr(options, name) != getattr(LongFormOptions(), name):
            raise InputError(f"{name}: {getattr(options, name)}; not allowed live; leave it out")
