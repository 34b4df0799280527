"""Read Whispers in Hugging Face's, CTranslate2's, OpenAI's and aiola's format."""

import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import WhisperConfig

from espnet_medusa.data.errors import InputError, first_line
from espnet_medusa.data.files.checkpoint import check_shapes, load_weights
from espnet_medusa.data.options import check_at_least, check_choice
from espnet_medusa.inference.convert.checkpoint import (
    CONFIG,
    FEATURES,
    GENERATION,
    RECORDS,
    Architecture,
    Checkpoint,
    check_whisper_fields,
)
from espnet_medusa.inference.convert.generation import (
    generation_of_ctranslate2,
    prompt_of_generation,
)
from espnet_medusa.inference.convert.names import DECODER, ENCODER, aiola_name, renamed
from espnet_medusa.inference.convert.special_ids import symbol_ids, without_wrong_alignment
from espnet_medusa.networks.heads import HeadOptions
from espnet_medusa.networks.whisper.pretrained import (
    EMBEDDING,
    PROJECTION,
    PretrainedWhisper,
    drop_tied,
    is_local,
    open_whisper,
)
from espnet_medusa.networks.whisper.sizes import SIZES, check_sizes, scratch_config
from espnet_medusa.networks.whisper.text import Text, TextOptions, find_text
from espnet_medusa.networks.whisper.weight_files import read_json

BASE_HEAD, MEDUSA_BLOCK = "base_head", "medusa_block"
AIOLA_HEAD_TYPES = {BASE_HEAD: "linear", MEDUSA_BLOCK: "block"}  # aiola's name to ours
NUM_HEADS, NUM_LAYERS, TYPE = "medusa_num_heads", "medusa_num_layers", "medusa_heads_type"
CHOICES, BASE_MODEL = "medusa_choices", "whisper_model_name"


def read_whisper(source: str, text: TextOptions, base_model: str | None = None) -> Checkpoint:
    """Read a Whisper, with or without aiola's heads; raise InputError if a file is not valid.

    Args:
        source: Hub name, folder in Hugging Face or CTranslate2 format, or OpenAI ``.pt`` file.
        base_model: Whisper with the sizes that aiola's ``config.json`` lacks.
    """
    whisper = open_whisper(source)
    if whisper.files[0].suffix == ".pt":
        return _read_plain(whisper, find_text(whisper.config.vocab_size, None, text, {}), {})
    folder = whisper.files[0].parent
    if whisper.is_ctranslate2:
        content = find_text(whisper.config.vocab_size, folder, text, {})
        generation = generation_of_ctranslate2(folder / CONFIG, content, whisper.config)
        records = {GENERATION: generation}
        if (folder / FEATURES).is_file():
            records[FEATURES] = read_json(folder / FEATURES)
        return _read_plain(whisper, content, records)
    records = {name: read_json(folder / name) for name in RECORDS if (folder / name).is_file()}
    fields = records[CONFIG]
    check_whisper_fields(fields, f"{source}: {CONFIG}")
    with_heads = any(name.startswith("medusa_") for name in fields)
    config = _aiola_sizes(fields, base_model, source) if with_heads else whisper.config
    content = find_text(config.vocab_size, folder, text, symbol_ids(records))
    if GENERATION in records:
        where = str(folder / GENERATION)
        records[GENERATION] = without_wrong_alignment(records[GENERATION], config, where)
    if not with_heads:
        return _read_plain(whisper, content, records)
    return _read_aiola(whisper, config, content, records)


def _read_plain(whisper: PretrainedWhisper, text: Text, records: dict[str, dict]) -> Checkpoint:
    architecture = Architecture(whisper.config)
    weights = {
        prefix + name: value
        for prefix in (ENCODER, DECODER)
        for name, value in whisper.weights(prefix.split(".")[0]).items()
    }
    check_shapes(weights, architecture.tensors(), whisper.name, complete=True)
    prompt = prompt_of_generation(records.get(GENERATION, {}))
    return Checkpoint(whisper.name, architecture, weights, text, records, prompt=prompt)


def _read_aiola(
    whisper: PretrainedWhisper, config: WhisperConfig, text: Text, records: dict[str, dict]
) -> Checkpoint:
    stored: dict[str, torch.Tensor] = {}
    for path in whisper.files:
        stored |= load_weights(path)
    prefix = "whisper_model."
    drop_tied(stored, prefix + PROJECTION, f"{prefix}model.decoder.{EMBEDDING}", whisper.name)
    fields = records[CONFIG]
    options = _head_options(fields, f"{whisper.name}: {CONFIG}")
    # By tensors, not config: files may lack the last layer's copy, which only training uses.
    original = any(name.startswith("whisper_layer.") for name in stored)
    kind = AIOLA_HEAD_TYPES[fields.get(TYPE, BASE_HEAD)]
    architecture = Architecture(config, kind, options, original)
    expected = architecture.tensors()
    names = renamed(expected, aiola_names(architecture))
    shapes = {theirs: expected[ours] for theirs, ours in names.items()}
    check_shapes(stored, shapes, whisper.name, complete=True)
    weights = {ours: stored[theirs] for theirs, ours in names.items()}
    prompt = prompt_of_generation(records.get(GENERATION, {}))
    return Checkpoint(whisper.name, architecture, weights, text, records, prompt=prompt)


def aiola_names(architecture: Architecture) -> Callable[[str], str | None]:
    """Return the function from our names to aiola's; in type ``base_head``, head 0 is the base."""
    first_head = 1 if architecture.heads == AIOLA_HEAD_TYPES[BASE_HEAD] else 0
    return lambda name: aiola_name(name, first_head)


def _head_options(fields: Mapping, where: str) -> HeadOptions:
    kind = fields.get(TYPE, BASE_HEAD)
    check_choice(kind, [*AIOLA_HEAD_TYPES], f"{where}: {TYPE}")
    if NUM_HEADS not in fields:
        raise InputError(f"{where}: {NUM_HEADS} is missing; add the number of heads")
    sizes = {}
    for ours, theirs in (("num_heads", NUM_HEADS), ("num_layers", NUM_LAYERS)):
        value = fields.get(theirs, 1)
        if type(value) is not int:
            raise InputError(f"{where}: {theirs}: {value!r}; allowed: a whole number, 1 or more")
        check_at_least(value, 1, f"{where}: {theirs}")
        sizes[ours] = value
    choices, most = fields.get(CHOICES), sizes["num_heads"]
    is_tree = isinstance(choices, list) and choices[:1] == [1] and len(choices) <= most + 1
    is_tree = is_tree and all(type(choice) is int and choice > 0 for choice in choices)
    if choices is not None and not is_tree:
        raise InputError(
            f"{where}: {CHOICES}: {choices}; allowed: 1 for the root, then at most {most} numbers "
            "of 1 or more, one per head"
        )
    return HeadOptions(**sizes, base_head=kind == BASE_HEAD)


def _aiola_sizes(fields: Mapping, base_model: str | None, source: str) -> WhisperConfig:
    """Return the sizes in aiola's config, completed by its base model's."""
    missing = [name for name in SIZES if name not in fields]
    if not missing:
        return scratch_config(0.0, **{name: fields[name] for name in SIZES})
    name = base_model or fields.get(BASE_MODEL)
    if name and not base_model and not is_local(source) and is_local(str(name)):
        raise InputError(
            f"{source}: {CONFIG}: {BASE_MODEL}: {reprlib.repr(name)}; a model from a hub "
            "may only name another on the hub; give --whisper_model to read a local folder"
        )
    if not isinstance(name, str):
        raise InputError(
            f"{source}: {CONFIG}: {', '.join(missing)} missing, and no {BASE_MODEL}; "
            "give --whisper_model, the base model"
        )
    base = _sizes_of(name, source)
    sizes = {name: fields.get(name, getattr(base, name)) for name in SIZES}
    check_sizes(sizes, f"{source}: {CONFIG}")
    return scratch_config(0.0, **sizes)


def _sizes_of(name: str, source: str) -> WhisperConfig:
    if Path(name).suffix == ".pt":
        return open_whisper(name).config
    try:
        # Does not run the config's code and does not download weights.
        return WhisperConfig.from_pretrained(name)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise InputError(
            f"{source}: {CONFIG} lacks sizes, and its base model {name!r} was not found: "
            f"{first_line(error)}; give --whisper_model, a folder or hub name"
        ) from error
