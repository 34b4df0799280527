"""Make ``generation_config.json`` and CTranslate2's ``config.json``."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path

from transformers import WhisperConfig

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.convert.checkpoint import GENERATION, PromptOptions
from espnet_medusa.inference.convert.special_ids import (
    ALIGNMENT,
    SUPPRESS,
    SUPPRESS_FIRST,
    without_wrong_alignment,
)
from espnet_medusa.networks.whisper.sizes import check_alignment, check_ids
from espnet_medusa.networks.whisper.text import Text
from espnet_medusa.networks.whisper.tokens import TASKS
from espnet_medusa.networks.whisper.weight_files import read_json

LANGUAGES = "lang_to_id"
# transformers' name of a list of ids to CTranslate2's.
ID_LISTS = {SUPPRESS: "suppress_ids", SUPPRESS_FIRST: "suppress_ids_begin"}
LANGUAGE_IDS = "lang_ids"


def generation_of_text(text: Text, whisper: WhisperConfig) -> dict:
    """Make the config from the vocabulary; with Whisper's tokenizer, it has more fields."""
    fields = dict.fromkeys(("bos_token_id", "pad_token_id", "eos_token_id"), text.end) | {
        "decoder_start_token_id": text.start,
        "max_length": whisper.max_target_positions,
        "return_timestamps": False,
    }
    tokens = text.whisper
    if tokens is None:
        return fields
    fields |= {
        "is_multilingual": bool(tokens.languages),
        "no_timestamps_token_id": tokens.no_timestamps,
        SUPPRESS: tokens.suppressed,
        SUPPRESS_FIRST: tokens.begin_suppressed,
    }
    if tokens.languages:
        fields[LANGUAGES] = {f"<|{code}|>": id for code, id in tokens.languages.items()}
        fields["task_to_id"] = {name: getattr(tokens, name) for name in TASKS}
    return fields


def prompt_of_generation(fields: Mapping) -> PromptOptions:
    """Return the prompt of a ``generation_config.json``; raise InputError for other types.

    transformers accepts a language's code, token or name: ``de``, ``<|de|>``, ``German``.
    """
    from whisper.tokenizer import TO_LANGUAGE_CODE  # Slow to import.

    given = {name: fields[name] for name in ("language", "task") if fields.get(name)}
    for name, value in given.items():
        if not isinstance(value, str):
            raise InputError(f"{GENERATION}: {name}: {value}; allowed: one {name}; correct it")
    if "language" in given:
        code = given["language"].lower().strip("<|>")
        given["language"] = TO_LANGUAGE_CODE.get(code, code)
    return PromptOptions(**given)


def generation_of_ctranslate2(path: Path, text: Text, whisper: WhisperConfig) -> dict:
    """Make the config from the vocabulary and CTranslate2's ``config.json``, which is checked."""
    config = without_wrong_alignment(read_json(path), whisper, str(path))
    _check_ctranslate2(config, whisper, str(path))
    fields = generation_of_text(text, whisper)
    names = ID_LISTS | {ALIGNMENT: ALIGNMENT}
    fields |= {name: config[read] for name, read in names.items() if config.get(read) is not None}
    languages = config.get(LANGUAGE_IDS)
    # English-only models also have the list, but do not use it.
    if languages and LANGUAGES in fields:
        known = fields[LANGUAGES].items()
        fields[LANGUAGES] = {name: id for name, id in known if id in languages}
    return fields


def ctranslate2_of_generation(generation: Mapping, whisper: WhisperConfig, where: str) -> dict:
    """Return the fields of CTranslate2's ``config.json``; raise InputError if one does not fit."""
    fields = {written: generation.get(name) or [] for name, written in ID_LISTS.items()}
    languages = generation.get(LANGUAGES) or {}
    fields[LANGUAGE_IDS] = [*languages.values()] if isinstance(languages, dict) else languages
    layers, heads = whisper.decoder_layers, whisper.decoder_attention_heads
    # Without measured alignment heads, CTranslate2's converter uses these.
    later_half = product(range(layers // 2, layers), range(heads))
    fields[ALIGNMENT] = generation.get(ALIGNMENT) or [[*pair] for pair in later_half]
    _check_ctranslate2(fields, whisper, where)
    fields[LANGUAGE_IDS].sort()
    return fields


def _check_ctranslate2(config: Mapping, whisper: WhisperConfig, where: str) -> None:
    """Raise InputError for token ids or alignment heads that do not fit; lists may be missing."""
    for name in (*ID_LISTS.values(), LANGUAGE_IDS):
        if config.get(name) is not None:
            check_ids(config[name], whisper.vocab_size, f"{where}: {name}")
    if config.get(ALIGNMENT) is not None:
        check_alignment(config[ALIGNMENT], whisper, f"{where}: {ALIGNMENT}")
