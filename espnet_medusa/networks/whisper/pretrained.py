"""Pretrained Whisper: a hub name, a folder (Hugging Face, CTranslate2), or an OpenAI ``.pt`` file.

Encoder and decoder are built separately, and each reads only its half of the weights.
"""

import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import WhisperConfig

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.archive import is_archive_name
from espnet_medusa.data.files.checkpoint import (
    check_shapes,
    check_state_dict,
    load_pickled,
    open_safetensors,
)
from espnet_medusa.data.files.hub_cache import fetch
from espnet_medusa.networks.whisper.ctranslate2_file import BINARY
from espnet_medusa.networks.whisper.ctranslate2_whisper import read_config, read_half
from espnet_medusa.networks.whisper.sizes import (
    config_of_hugging_face,
    config_of_openai,
    config_of_options,
    network_config,
)
from espnet_medusa.networks.whisper.weight_files import (
    ADAPTER,
    CONFIG,
    download,
    find_weights,
    has_weights,
    model_folder,
    read_json,
    split_hub_name,
)

ENCODER, DECODER = "encoder", "decoder"
EMBEDDING, PROJECTION = "embed_tokens.weight", "proj_out.weight"  # of Whisper's decoder, tied
HUB_OWNERS = ("openai/whisper-", "distil-whisper/", "Systran/faster-")  # all models are Whisper

# From OpenAI's tensor names in encoder or decoder to transformers'; applied in this order.
OPENAI_NAMES = [
    (r"^token_embedding\.", "embed_tokens."),
    (r"^positional_embedding$", "embed_positions.weight"),
    (r"^blocks\.", "layers."),
    (r"^(ln|ln_post)\.", "layer_norm."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.cross_attn_ln\.", ".encoder_attn_layer_norm."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
    (r"\.attn\.", ".self_attn."),
    (r"\.cross_attn\.", ".encoder_attn."),
    (r"attn\.(q|k|v)(?:uery|ey|alue)\.", r"attn.\1_proj."),
    (r"attn\.out\.", "attn.out_proj."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
]


@dataclass(frozen=True)
class PretrainedWhisper:
    """A Whisper model whose weights are read on demand."""

    name: str  # as given
    config: WhisperConfig
    files: tuple[Path, ...]  # of its weights

    @property
    def is_ctranslate2(self) -> bool:
        """Whether its folder, including ``config.json``, has CTranslate2's format."""
        return self.files[0].name == BINARY

    def build(self, kind: type[torch.nn.Module], config: WhisperConfig, half: str):
        """Build ``ENCODER`` or ``DECODER`` in float32; raise InputError if a file is not valid."""
        with torch.device("meta"):
            module = kind(config)
        weights = self.weights(half)
        check_shapes(weights, module.state_dict(), self.name, complete=True)
        module.load_state_dict(weights, assign=True)
        return module

    def weights(self, half: str) -> dict[str, torch.Tensor]:
        """Read the tensors of encoder or decoder by transformers' names within it, in float32."""
        if self.is_ctranslate2:
            return read_half(self.files[0], half)
        weights = {}
        for path in self.files:
            read = _read_safetensors if path.suffix == ".safetensors" else _read_pickled
            weights |= read(path, half)
        weights = {name: value.float() for name, value in weights.items()}
        drop_tied(weights, PROJECTION, EMBEDDING, self.name)
        return weights


def drop_tied(
    weights: dict[str, torch.Tensor], projection: str, embedding: str, source: str
) -> None:
    """Remove the vocabulary projection; raise InputError if it differs from the embedding."""
    stored = weights.pop(projection, None)
    if stored is None or embedding not in weights:
        return
    if not torch.equal(stored, weights[embedding]):
        raise InputError(
            f"{source}: {projection} differs from the token embedding; allowed: tied weights, as "
            "in every Whisper; this model is not supported"
        )


def build_network(
    kind: type[torch.nn.Module], half: str, options: Any, names: Mapping[str, str], **sizes: int
):
    """Build ``ENCODER`` or ``DECODER`` from ESPnet's options; errors as ``open_whisper``.

    Weights are random without ``whisper_model``, with the sizes of ``config_of_options``.
    """
    if options.whisper_model is None:
        return kind(config_of_options(options, names, options.dropout_rate, **sizes))
    pretrained = open_whisper(options.whisper_model)
    return pretrained.build(kind, network_config(pretrained.config, options.dropout_rate), half)


def open_whisper(whisper_model: str) -> PretrainedWhisper:
    """Find a Whisper model and read its config; raise InputError if there is none."""
    path = Path(os.path.expanduser(whisper_model))
    if path.is_file() or path.suffix == ".pt":
        return _open_openai(whisper_model, path)
    given = path if is_local(whisper_model) else download(whisper_model)
    folder = model_folder(given, whisper_model)
    if folder != given != path:  # only the configs of subfolders have been fetched
        folder = download(f"{whisper_model}/{folder.name}")
    if (folder / BINARY).is_file() and not has_weights(folder):
        file = folder / BINARY
        return PretrainedWhisper(whisper_model, read_config(file), (file,))
    fields = read_json(folder / CONFIG)
    if fields.get("model_type") != "whisper":
        raise InputError(
            f"{folder / CONFIG}: model_type is not whisper; give a Whisper model (aiola's "
            "checkpoints: espnet-medusa-convert)"
        )
    config = config_of_hugging_face(fields, f"{folder / CONFIG}")
    return PretrainedWhisper(whisper_model, config, find_weights(folder, whisper_model))


def is_local(name: str) -> bool:
    """Return whether a name is a local file or folder instead of a hub name."""
    return name.startswith((".", "/", "~")) or Path(name).exists()


def is_whisper(name: str) -> bool:
    """Return whether a name is a Whisper model for ``open_whisper``.

    Fetches only ``config.json`` of a hub model. Also True for any folder and for missing paths:
    ``open_whisper`` then raises the error.
    """
    path = Path(os.path.expanduser(name))
    if path.exists() and path.suffix != ".pt":
        return path.is_dir()
    if is_archive_name(name):
        return False
    if path.suffix == ".pt" or name.startswith((".", "/", "~", *HUB_OWNERS)):
        return True
    from huggingface_hub import hf_hub_download

    repository, subfolder = split_hub_name(name)
    where = {"subfolder": subfolder} if subfolder else {}
    fields = {}
    for file in (CONFIG, ADAPTER):
        with suppress(OSError, ValueError):
            fields |= read_json(fetch(hf_hub_download, repository, file, **where))
            break
    if "base_model_name_or_path" in fields:
        return True
    return fields.get("model_type") == "whisper" or {"alignment_heads", "suppress_ids"} <= {*fields}


def _open_openai(name: str, path: Path) -> PretrainedWhisper:
    checkpoint = _load_pickled(path)
    try:
        config = config_of_openai(checkpoint["dims"], f"whisper_model: {name!r}: dims")
    except (LookupError, TypeError) as error:
        raise InputError(
            f"whisper_model: {name!r} has no 'dims', unlike OpenAI's .pt files ({error}); give a "
            "folder in Hugging Face format"
        ) from error
    return PretrainedWhisper(name, config, (path,))


def _load_pickled(path: Path) -> Mapping:
    if not path.is_file():
        raise InputError(f"whisper_model: {path}: no such file; correct the path")
    loaded = load_pickled(path, mmap=True)
    if not isinstance(loaded, Mapping):
        raise InputError(f"{path}: is not a mapping of names to tensors; fetch it again")
    return loaded


def _read_pickled(path: Path, half: str) -> dict[str, torch.Tensor]:
    loaded = _load_pickled(path)
    openai = "model_state_dict" in loaded
    tensors = check_state_dict(loaded["model_state_dict"] if openai else loaded, path)
    names = _names_within(tensors, half)
    return {
        _from_openai(inner) if openai else inner: tensors[name] for name, inner in names.items()
    }


def _read_safetensors(path: Path, half: str) -> dict[str, torch.Tensor]:
    with open_safetensors(path) as stored:
        names = _names_within(stored.keys(), half)
        return {inner: stored.get_tensor(name) for name, inner in names.items()}


def _names_within(names: Collection[str], half: str) -> dict[str, str]:
    """Map ``model.decoder.layers...`` to ``layers...``; tensors of other modules are omitted.

    The decoder includes ``proj_out.weight``.
    """
    pattern = re.compile(rf"(?:model\.)?{half}\.(.*)", re.DOTALL)
    within = {name: match[1] for name in names if (match := pattern.fullmatch(name))}
    tied = half == DECODER and PROJECTION in names
    return within | ({PROJECTION: PROJECTION} if tied else {})


def _from_openai(name: str) -> str:
    for pattern, replacement in OPENAI_NAMES:
        name = re.sub(pattern, replacement, name)
    return name
