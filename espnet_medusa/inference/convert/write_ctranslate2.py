"""Write CTranslate2's format, which faster-whisper runs.

CTranslate2's own specification classes quantize and write, so the file suits the installed release.
"""

from pathlib import Path

import numpy as np
import torch

from espnet_medusa.data.errors import InputError
from espnet_medusa.inference.convert.checkpoint import FEATURES, GENERATION, Checkpoint
from espnet_medusa.inference.convert.generation import ctranslate2_of_generation
from espnet_medusa.inference.convert.write_whisper import (
    feature_fields,
    generation_fields,
    write_json,
)
from espnet_medusa.networks.whisper.ctranslate2_whisper import EMBEDDINGS, PROJECTION, layout
from espnet_medusa.networks.whisper.tokens import TOKENIZER


def write_ctranslate2(checkpoint: Checkpoint, folder: Path, weights_type: str) -> None:
    """Write a folder for ``faster_whisper.WhisperModel`` from a checkpoint without heads.

    ``weights_type`` is ``quantization`` of CTranslate2's converters. Raises InputError if
    CTranslate2 is not installed, or the model lacks Whisper's tokenizer.
    """
    if checkpoint.text.whisper is None:
        raise InputError(
            f"{checkpoint.name}: its tokenizer lacks Whisper's symbols; faster-whisper needs them: "
            "give --to hugging_face"
        )
    whisper, where = checkpoint.architecture.whisper, f"{checkpoint.name}: {GENERATION}"
    fields = ctranslate2_of_generation(generation_fields(checkpoint), whisper, where)
    try:
        from ctranslate2 import specs
    except ImportError as error:
        remedy = "pip install 'espnet_medusa[ctranslate2]'"
        raise InputError(f"--to ctranslate2: {error}; {remedy}") from error
    spec = specs.WhisperSpec(
        whisper.encoder_layers,
        whisper.encoder_attention_heads,
        whisper.decoder_layers,
        whisper.decoder_attention_heads,
    )
    values = _values(checkpoint)
    values[PROJECTION] = values[EMBEDDINGS]  # equal arrays become aliases
    for name, value in values.items():
        layer, _, last = name.rpartition("/")
        setattr(specs.model_spec.index_spec(spec, layer), last, value)
    spec.register_vocabulary(checkpoint.text.tokens)
    for name, value in fields.items():
        setattr(spec.config, name, value)
    spec.validate()
    spec.optimize(quantization=weights_type)
    spec.save(str(folder))
    checkpoint.text.tokenizer.backend_tokenizer.save(str(folder / TOKENIZER))
    write_json(folder / FEATURES, feature_fields(checkpoint))


def _values(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return float32 copies by CTranslate2's names; quantization changes them in place."""
    # `decoder.whisper.layers...` is `decoder.layers...` there.
    weights = {name.replace(".whisper.", ".", 1): t for name, t in checkpoint.weights.items()}
    values = {}
    for name, variable in layout(checkpoint.architecture.whisper).items():
        rows = variable.shape[0] // len(variable.parts)
        parts = [torch.zeros(rows) if p is None else weights[p].float() for p in variable.parts]
        values[name] = torch.cat(parts).numpy()
    return values
