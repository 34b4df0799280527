"""Whether a model was trained on Whisper's labels: prompt, text and end."""

from argparse import Namespace
from typing import NamedTuple

from espnet_medusa.whisper.token_types import WHISPER_PREPROCESSOR, WHISPER_TYPES
from espnet_medusa.whisper.tokens import TRANSCRIBE


class Labels(NamedTuple):
    """What the prompts of training asked for, where an utterance did not have its own."""

    language: str | None
    task: str


def whisper_labels(train_args: Namespace) -> Labels | None:
    """Read an experiment's config: the plugin's preprocessor, or ESPnet's with Whisper's tokens.

    Args:
        train_args: ESPnet's.

    Returns:
        None where labels are text alone.
    """
    conf = getattr(train_args, "preprocessor_conf", None) or {}
    if getattr(train_args, "preprocessor", None) == WHISPER_PREPROCESSOR:
        return Labels(conf.get("language", "en"), conf.get("task", TRANSCRIBE))
    if getattr(train_args, "token_type", None) in WHISPER_TYPES:
        return Labels(conf.get("whisper_language") or "en", conf.get("whisper_task") or TRANSCRIBE)
    return None
