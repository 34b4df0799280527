"""Token ids in the configs of a checkpoint: its start and end symbols, and suppressed tokens.

As in transformers, ``generation_config.json`` has precedence over ``config.json``.
"""

import logging
import reprlib
from collections.abc import Mapping

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.convert.checkpoint import CONFIG, GENERATION
from espnet_medusa.networks.whisper.sizes import check_alignment
from espnet_medusa.networks.whisper.text import Text

logger = logging.getLogger(__name__)

SUPPRESS, SUPPRESS_FIRST = LISTS = ("suppress_tokens", "begin_suppress_tokens")
SYMBOLS = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
ALIGNMENT = "alignment_heads"
# Only Whisper's own generation configs have this field: there, a missing list is an empty one.
OF_WHISPER = "no_timestamps_token_id"

Records = Mapping[str, Mapping]  # JSON files by name


def symbol_ids(records: Records) -> dict[str, list[int]]:
    """Return the ids of each of ``SYMBOLS`` that has any; raise InputError for other values."""
    ids = {}
    for file in (CONFIG, GENERATION):
        for name in SYMBOLS:
            value = records.get(file, {}).get(name)
            found = [value] if type(value) is int else [] if value is None else value
            if not isinstance(found, list) or any(type(number) is not int for number in found):
                raise InputError(
                    f"{file}: {name}: {reprlib.repr(value)}; allowed: a token id, or a list of "
                    "them; correct it"
                )
            if found:
                ids[name] = found
    return ids


def suppressed_ids(records: Records, text: Text) -> dict[str, list[int]]:
    """Return the lists of suppressed tokens that the configs define, without impossible ids.

    Raise InputError for values that are no list of ids.
    """
    config, generation = records.get(CONFIG, {}), records.get(GENERATION, {})
    lists = {}
    for name in LISTS:
        file, value = GENERATION, generation.get(name)
        if name in generation or OF_WHISPER in generation:
            value = [] if value is None else value
        else:
            file, value = CONFIG, config.get(name)
        if value is not None:
            lists[name] = _possible_ids(value, text, name, f"{file}: {name}")
    return lists


def _possible_ids(value: object, text: Text, name: str, where: str) -> list[int]:
    if not isinstance(value, list) or any(type(token) is not int for token in value):
        raise InputError(
            f"{where}: {reprlib.repr(value)}; allowed: a list of token ids; correct it"
        )
    possible = [token for token in value if 0 <= token < len(text.tokens)]
    if name == SUPPRESS:
        possible = [token for token in possible if token != text.end]
    if len(possible) < len(value):
        ignored = reprlib.repr([token for token in value if token not in possible])
        logger.warning(f"{where}: ignored: {ignored}, the end symbol or not in the vocabulary")
    return possible


def without_wrong_alignment(fields: Mapping, whisper: object, where: str) -> dict:
    """Return the fields without alignment heads that do not fit the model, with a warning."""
    fields = dict(fields)
    try:
        if fields.get(ALIGNMENT) is not None:
            check_alignment(fields[ALIGNMENT], whisper, f"{where}: {ALIGNMENT}")
    except InputError as error:
        logger.warning(f"{error}; word times use all heads of the upper half of layers instead")
        del fields[ALIGNMENT]
    return fields
