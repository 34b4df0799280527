"""Pretrained Whisper: a hub name, a folder (Hugging Face, CTranslate2), or an OpenAI ``.pt`` file.

Encoder and decoder are built separately, and each reads only its half of the weights.
"""

import json
import os
import re
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import WhisperConfig

from espnet_medusa.data.errors import InputError, first_line
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

ENCODER, DECODER = "encoder", "decoder"
EMBEDDING, PROJECTION = "embed_tokens.weight", "proj_out.weight"  # of Whisper's decoder, tied
CONFIG, PICKLED = "config.json", "pytorch_model.bin"
SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"[\w-][\w.-]{,200}\.safetensors", re.ASCII)  # file names have at most 255 bytes
HUB_PATTERNS = ["*.json", "merges.txt", SAFE, "model-*.safetensors"]
HUB_OWNERS = ("openai/whisper-", "distil-whisper/", "Systran/faster-")  # all models are Whisper
OTHER_PATTERNS = ["*.json", PICKLED, BINARY]  # without safetensors

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
    folder = path if is_local(whisper_model) else _download(whisper_model)
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"whisper_model: {whisper_model!r} has no {CONFIG}; give a folder in Hugging Face "
            "format (save_pretrained) or faster-whisper's, an OpenAI .pt file or a name such as "
            "openai/whisper-base"
        )
    if (folder / BINARY).is_file() and not _hugging_face_files(folder):
        file = folder / BINARY
        return PretrainedWhisper(whisper_model, read_config(file), (file,))
    fields = read_json(folder / CONFIG)
    if fields.get("model_type") != "whisper":
        raise InputError(
            f"{folder / CONFIG}: model_type is not whisper; give a Whisper model (aiola's "
            "checkpoints: espnet-medusa-convert)"
        )
    config = config_of_hugging_face(fields, f"{folder / CONFIG}")
    return PretrainedWhisper(whisper_model, config, _weight_files(folder, whisper_model))


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

    try:
        fields = read_json(fetch(hf_hub_download, name, CONFIG))
    except (OSError, ValueError):
        return False
    return fields.get("model_type") == "whisper" or {"alignment_heads", "suppress_ids"} <= {*fields}


def _weight_files(folder: Path, name: str) -> tuple[Path, ...]:
    if (folder / SAFE_INDEX).is_file():
        files = [folder / file for file in _indexed_files(folder / SAFE_INDEX)]
    else:
        files = _hugging_face_files(folder)[:1]
    missing = [path for path in files if not path.is_file()]
    if missing or not files:
        lacking = missing[0].name if missing else SAFE
        raise InputError(f"whisper_model: {name!r} lacks {lacking}; fetch it again")
    return tuple(files)


def _indexed_files(path: Path) -> list[str]:
    """Return the file names in an index, which is untrusted: only names in its own folder."""
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise InputError(f"{path}: weight_map lists no files; fetch it again")
    for file in files.values():
        if not isinstance(file, str) or SHARD.fullmatch(file) is None:
            raise InputError(
                f"{path}: weight_map: {reprlib.repr(file)}; allowed: names of .safetensors files "
                "next to it"
            )
    return sorted({*files.values()})


def _hugging_face_files(folder: Path) -> list[Path]:
    return [folder / name for name in (SAFE_INDEX, SAFE, PICKLED) if (folder / name).is_file()]


def _download(name: str) -> Path:
    """Return the folder of a hub model in the local cache, after fetching it if necessary."""
    from huggingface_hub import snapshot_download

    if is_archive_name(name):
        raise InputError(f"whisper_model: {name}: no such folder; correct the path")
    try:
        folder = fetch(snapshot_download, name, allow_patterns=HUB_PATTERNS)
        if not [*folder.glob("*.safetensors")]:
            folder = fetch(snapshot_download, name, allow_patterns=OTHER_PATTERNS)
    except (OSError, ValueError) as error:
        raise InputError(
            f"whisper_model: {name!r} is not a folder and was not fetched from the hub: "
            f"{first_line(error)}; check the name and the network, or give a folder"
        ) from error
    return folder


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


def read_json(path: Path) -> dict:
    """Read a JSON file; raise InputError if it does not contain an object."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON: {error}; fetch it again") from error
    if not isinstance(fields, dict):
        raise InputError(f"{path}: is not a JSON object; fetch it again")
    return fields
