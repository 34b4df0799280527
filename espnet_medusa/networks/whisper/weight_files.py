"""Files of a Whisper in transformers' layouts: one file or shards, safetensors or pickled."""

import json
import logging
import re
import reprlib
from pathlib import Path

from espnet_medusa.data.errors import InputError, first_line
from espnet_medusa.data.files.archive import is_archive_name
from espnet_medusa.data.files.hub_cache import fetch

logger = logging.getLogger(__name__)

CONFIG, ADAPTER = "config.json", "adapter_config.json"  # ADAPTER: of the library PEFT
INDEX = ".index"
# By format: file names without suffix and with it, in the order of preference.
FORMATS = (("model", ".safetensors"), ("pytorch_model", ".bin"))
# Patterns of files that are fetched from the hub, and of the weights that end the fetching.
HUB_PATTERNS = (
    (["*.json", "merges.txt", "model.safetensors", "model-*.safetensors"], "*.safetensors"),
    (["*.json", "pytorch_model.bin", "pytorch_model-*.bin", "model.bin"], "*.bin"),
    (["*.json", "model.*.safetensors", "pytorch_model.*.bin"], "*"),  # variants
)
MERGE = (
    "model = PeftModel.from_pretrained(WhisperForConditionalGeneration.from_pretrained({base}), "
    "{adapter})",
    "model.merge_and_unload().save_pretrained('merged')",
)


def find_weights(folder: Path, name: str) -> tuple[Path, ...]:
    """Return the files of a model's weights; raise InputError if there are none, or one is missing.

    Shards precede a single file unless one of them is missing. A variant, such as
    ``model.fp16.safetensors``, is read if there is nothing else.
    """
    problem = None
    for stem, suffix in FORMATS:
        for file in _candidates(folder, stem, suffix):
            files = [file]
            if file.suffix == ".json":
                files = [folder / shard for shard in indexed_files(file, suffix)]
            missing = [path.name for path in files if not path.is_file()]
            if not missing:
                return tuple(files)
            problem = problem or missing[0]
    if (folder / ADAPTER).is_file():
        raise InputError(_merge_first(folder, name))
    lacking = problem or "".join(FORMATS[0])
    raise InputError(f"whisper_model: {name!r} lacks {lacking}; fetch it again")


def has_weights(folder: Path) -> bool:
    """Return whether a folder has a file or index of weights, also if shards are missing."""
    return any(True for parts in FORMATS for _ in _candidates(folder, *parts))


def _candidates(folder: Path, stem: str, suffix: str) -> list[Path]:
    plain = [folder / f"{stem}{suffix}{INDEX}.json", folder / f"{stem}{suffix}"]
    found = [path for path in plain if path.is_file()]
    if found:
        return found
    # A shard's name, such as model.fp16-00001-of-00002.safetensors, has a hyphen.
    patterns = f"{stem}{suffix}{INDEX}.*.json", f"{stem}.*{suffix}"
    variants = [path for one in patterns for path in folder.glob(one) if "-" not in path.name]
    return sorted(variants, key=lambda path: ("fp32" not in path.name, path.name))


def indexed_files(path: Path, suffix: str) -> list[str]:
    """Return the file names in an index, which is untrusted: only names in its own folder."""
    shard = re.compile(rf"[\w-][\w.-]{{,200}}{re.escape(suffix)}", re.ASCII)  # at most 255 bytes
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise InputError(f"{path}: weight_map lists no files; fetch it again")
    for file in files.values():
        if not isinstance(file, str) or shard.fullmatch(file) is None:
            raise InputError(
                f"{path}: weight_map: {reprlib.repr(file)}; allowed: names of {suffix} files "
                "next to it"
            )
    return sorted({*files.values()})


def model_folder(folder: Path, name: str) -> Path:
    """Return the folder that has ``config.json``: this one, or its only subfolder with one.

    Raise InputError if there is none, there are several, or there is only an adapter.
    """
    if (folder / CONFIG).is_file():
        return folder
    if (folder / ADAPTER).is_file():
        raise InputError(_merge_first(folder, name))
    inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG}"))
    if len(inside) == 1:
        logger.warning(f"whisper_model: {name!r} has no {CONFIG}; reading {inside[0]}")
        return inside[0]
    several = ", ".join(path.name for path in inside)
    if several:
        raise InputError(
            f"whisper_model: {name!r} has no {CONFIG}, but several of its folders have one; give "
            f"one of them: {several}"
        )
    raise InputError(
        f"whisper_model: {name!r} has no {CONFIG}; give a folder in Hugging Face format "
        "(save_pretrained) or faster-whisper's, an OpenAI .pt file or a name such as "
        "openai/whisper-base"
    )


def _merge_first(folder: Path, name: str) -> str:
    base = read_json(folder / ADAPTER).get("base_model_name_or_path")
    base = base if isinstance(base, str) else "openai/whisper-base"
    lines = "; ".join(MERGE).format(base=reprlib.repr(base), adapter=repr(name))
    what = "is a PEFT adapter, without the Whisper that it changes"
    return f"whisper_model: {name!r} {what}; merge it first: {lines}"


def split_hub_name(name: str) -> tuple[str, str]:
    """Return repository and subfolder (or an empty string) of ``owner/name/subfolder``."""
    parts = name.split("/")
    return "/".join(parts[:2]), "/".join(parts[2:])


def download(name: str) -> Path:
    """Return the folder of a hub model in the local cache, after fetching it if necessary."""
    from huggingface_hub import snapshot_download

    if is_archive_name(name):
        raise InputError(f"whisper_model: {name}: no such folder; correct the path")
    repository, inside = split_hub_name(name)
    prefix = f"{inside}/" if inside else ""
    try:
        for patterns, suffix in HUB_PATTERNS:
            patterns = [prefix + pattern for pattern in patterns]
            folder = fetch(snapshot_download, repository, allow_patterns=patterns) / inside
            if [*folder.glob(suffix)] or not (folder / CONFIG).is_file():
                break
    except (OSError, ValueError) as error:
        raise InputError(
            f"whisper_model: {name!r} is not a folder and was not fetched from the hub: "
            f"{first_line(error)}; check the name and the network, or give a folder"
        ) from error
    return folder


def read_json(path: Path) -> dict:
    """Read a JSON file; raise InputError if it does not contain an object."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON: {error}; fetch it again") from error
    if not isinstance(fields, dict):
        raise InputError(f"{path}: is not a JSON object; fetch it again")
    return fields
