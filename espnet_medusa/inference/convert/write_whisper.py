"""Write Hugging Face's format: Whisper without heads, and aiola's with heads."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from transformers import WhisperConfig, WhisperFeatureExtractor

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.convert.checkpoint import (
    CONFIG,
    DROP_BASE_HEAD,
    FEATURES,
    GENERATION,
    Checkpoint,
)
from espnet_medusa.inference.convert.generation import generation_of_text
from espnet_medusa.inference.convert.names import Rename, hugging_face_name, renamed
from espnet_medusa.inference.convert.read_whisper import (
    AIOLA_HEAD_TYPES,
    BASE_HEAD,
    BASE_MODEL,
    CHOICES,
    MEDUSA_BLOCK,
    NUM_HEADS,
    NUM_LAYERS,
    SIZES,
    TYPE,
    aiola_names,
)
from espnet_medusa.networks.heads import NO_HEADS
from espnet_medusa.networks.whisper.log_mel import HOP_SAMPLES, SAMPLE_RATE_HZ
from espnet_medusa.networks.whisper_encoder import AUDIO_WINDOW

logger = logging.getLogger(__name__)

AIOLA = "aiola"  # the only other format with heads
MAX_SHARD_SIZE = "5GB"
AIOLA_FIELDS = ("medusa_", "posterior_", BASE_MODEL, "output_whisper_original")
POSTERIOR = {"posterior_threshold": 0.09, "posterior_alpha": 0.3}


def write_hugging_face(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a ``WhisperForConditionalGeneration`` from a checkpoint without heads."""
    config = whisper_fields(checkpoint) | {"architectures": ["WhisperForConditionalGeneration"]}
    generation = generation_fields(checkpoint)
    for fields in (config, generation):
        for name in [name for name in fields if name.startswith(AIOLA_FIELDS)]:
            del fields[name]
    _write(folder, checkpoint, config, generation, hugging_face_name)


def without_unsupported(checkpoint: Checkpoint, target: str) -> Checkpoint:
    """Remove what other programs' formats cannot store, with a warning for each part."""
    if checkpoint.ctc is not None:
        names = ", ".join(checkpoint.ctc.weights)
        logger.warning(f"{checkpoint.name}: not converted, as {target} cannot store it: {names}")
    if checkpoint.window == AUDIO_WINDOW:
        logger.warning(
            f"{checkpoint.name}: trained with window: {AUDIO_WINDOW}; other programs always pad "
            "audio to 30 s"
        )
    heads = checkpoint.architecture.heads
    if target == AIOLA or heads == NO_HEADS:
        return checkpoint
    logger.warning(f"{checkpoint.name}: heads: {heads}: not written")
    return checkpoint.without_heads()


def write_aiola(checkpoint: Checkpoint, folder: Path, base_model: str | None = None) -> None:
    """Write a folder for aiola's ``WhisperMedusaModel.from_pretrained``.

    ``base_model`` is the value of ``whisper_model_name``; None: as in the source. Raises InputError
    if the model has no heads, or the format does not support them.
    """
    architecture = checkpoint.architecture
    ours_to_theirs = {ours: theirs for theirs, ours in AIOLA_HEAD_TYPES.items()}
    if architecture.heads not in ours_to_theirs:
        raise InputError(
            f"{checkpoint.name}: heads: {architecture.heads}; aiola's format supports "
            f"{', '.join(ours_to_theirs)}; give --to hugging_face for the base model"
        )
    kind = ours_to_theirs[architecture.heads]
    if kind == MEDUSA_BLOCK and checkpoint.has_base_head:
        raise InputError(
            f"{checkpoint.name}: heads: block with base_head: true; aiola's {MEDUSA_BLOCK} has no "
            f"residual layers for its base head; {DROP_BASE_HEAD}"
        )
    source = checkpoint.records.get(CONFIG, {})
    base_model = base_model or source.get(BASE_MODEL)
    if base_model is None:
        raise InputError(
            f"{checkpoint.name}: aiola's format names the Whisper that it is based on; give "
            "--whisper_model, such as openai/whisper-large-v2"
        )
    weights = dict(checkpoint.weights)
    if kind == BASE_HEAD and not checkpoint.has_base_head:
        # aiola's base head always has residual layers; with zeros they change nothing.
        first, base = "decoder.heads.heads.0.", "decoder.heads.base."
        layers = [name for name in weights if name.startswith(first)]
        weights |= {name.replace(first, base): torch.zeros_like(weights[name]) for name in layers}
    num_heads, choices = architecture.head_options.num_heads, source.get(CHOICES)
    fits = isinstance(choices, list) and len(choices) == num_heads + 1
    config = {
        **{"medusa_loss_on_original": False, "medusa_kl_loss": False, "medusa_kl_weight": 0},
        **whisper_fields(checkpoint),
        "architectures": ["WhisperMedusaModel"],
        TYPE: kind,
        NUM_HEADS: num_heads,
        NUM_LAYERS: architecture.head_options.num_layers,
        "medusa_hidden_size": architecture.whisper.d_model,
        CHOICES: choices if fits else [1] * (num_heads + 1),
        BASE_MODEL: base_model,
        "output_whisper_original": architecture.original_last_layer,
    }
    generation = POSTERIOR | generation_fields(checkpoint)
    full = replace(checkpoint, weights=weights)
    _write(folder, full, config, generation, aiola_names(architecture))


def whisper_fields(checkpoint: Checkpoint) -> dict:
    """Return the base model's ``config.json``: the source's if there is one, with these sizes."""
    whisper, text = checkpoint.architecture.whisper, checkpoint.text
    sizes = {name: getattr(whisper, name) for name in SIZES}
    fields = dict(checkpoint.records.get(CONFIG, {}))
    if not fields:
        fields = WhisperConfig(begin_suppress_tokens=None).to_dict()
        fields |= {"bos_token_id": text.end, "pad_token_id": text.end}
    ids = {"decoder_start_token_id": text.start, "eos_token_id": text.end}
    weight = next(iter(checkpoint.weights.values()))
    for name in fields.keys() & {"dtype", "torch_dtype"}:
        fields[name] = str(weight.dtype).removeprefix("torch.")
    return fields | sizes | ids


def generation_fields(checkpoint: Checkpoint) -> dict:
    """Return ``generation_config.json``: the source's, or one from Whisper's vocabulary."""
    if GENERATION in checkpoint.records:
        return dict(checkpoint.records[GENERATION])
    return generation_of_text(checkpoint.text, checkpoint.architecture.whisper)


def feature_fields(checkpoint: Checkpoint) -> dict:
    """Return ``preprocessor_config.json``: the source's, or one from the encoder's sizes."""
    if FEATURES in checkpoint.records:
        return dict(checkpoint.records[FEATURES])
    whisper = checkpoint.architecture.whisper
    seconds = 2 * whisper.max_source_positions * HOP_SAMPLES // SAMPLE_RATE_HZ
    return WhisperFeatureExtractor(whisper.num_mel_bins, chunk_length=seconds).to_dict()


def _write(
    folder: Path, checkpoint: Checkpoint, config: dict, generation: dict, rename: Rename
) -> None:
    write_json(folder / CONFIG, config)
    write_json(folder / GENERATION, generation)
    write_json(folder / FEATURES, feature_fields(checkpoint))
    if checkpoint.text.tokenizer is None:
        logger.warning(f"{checkpoint.name}: token_type is not hugging_face: writing no tokenizer")
    checkpoint.text.save(folder)
    names = renamed(checkpoint.weights, rename)
    tensors = {theirs: checkpoint.weights[ours].contiguous() for theirs, ours in names.items()}
    save_torch_state_dict(tensors, folder, max_shard_size=MAX_SHARD_SIZE)


def write_json(path: Path, fields: Mapping) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
