"""ESPnet's packed models: fetch, check, open and pack.

A packed model is a folder of a hub, or an archive of ``espnet2.bin.pack``. Its ``meta.yaml`` names
weights (``files``) and configs (``yaml_files``) by ESPnet's options. A packed model is untrusted:
its configs may only refer to files inside its own folder.
"""

import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

from espnet_medusa.data.errors import InputError, first_line
from espnet_medusa.data.files.archive import is_archive_name, unpack
from espnet_medusa.data.files.atomic import naming
from espnet_medusa.data.files.cache_folder import in_cache
from espnet_medusa.data.files.output_folder import cached_output, digest_of_inputs
from espnet_medusa.data.options import read_config
from espnet_medusa.inference.convert.experiment import write_yaml

META, UNPACKED = "meta.yaml", "model"
WEIGHTS, CONFIGS = "files", "yaml_files"
ROLES = {
    WEIGHTS: ("asr_model_file", "s2t_model_file", "lm_file", "ngram_file", "bpemodel"),
    CONFIGS: ("asr_train_config", "s2t_train_config", "lm_train_config"),
}
TOKENS = "token_list"
PATHS = (TOKENS, "bpemodel", "non_linguistic_symbols")  # values may be paths without a slash
# Data and results of training: decoding opens none of them.
OF_TRAINING = (
    "config", "deepspeed_config", "output_dir", "init_param", "dist_init_method", "noise_scp",
    "rir_scp", "train_data_path_and_name_and_type", "train_shape_file",
    "valid_data_path_and_name_and_type", "valid_shape_file",
)  # fmt: skip
# Folders to which ESPnet's encoders download files.
DOWNLOADS = ("download_dir", "w2v_dir_path", "hubert_dir_path", "avhubert_dir_path")
STATISTICS = "stats_file"  # of feature normalization; decoding needs it
HUB = "https://huggingface.co/"
REMEDY = "fetch it again; if you trust it, unpack it yourself and give --asr_train_config"


def fetch_packed_model(model_tag: str) -> Path:
    """Return the path of an archive, or of a model that is downloaded from ESPnet's zoo or a hub.

    Raise InputError if there is no such model, or it cannot be downloaded.
    """
    path = Path(os.path.expanduser(model_tag))
    if path.is_file():
        return path
    if model_tag.startswith((".", "/", "~")) or is_archive_name(model_tag):
        raise InputError(f"model_tag: {model_tag}: no such file; correct the path")
    try:
        from espnet_model_zoo.downloader import ModelDownloader
    except ImportError as error:
        raise InputError(
            f"model_tag: {model_tag!r} is no file; for models of ESPnet's zoo: "
            "pip install espnet_model_zoo"
        ) from error
    name = model_tag.removeprefix(HUB)
    try:
        # Not the zoo's own unpacking: it does not check the paths in an archive.
        downloader = ModelDownloader()
        if name != model_tag or downloader.get_url(name=name) == "huggingface.co":
            return Path(downloader.huggingface_download(name=name))
        return Path(downloader.download(name=name))
    except (OSError, RuntimeError, LookupError, ValueError) as error:
        raise InputError(
            f"model_tag: {model_tag!r} was not fetched: {first_line(error)}; check the name and "
            "the network"
        ) from error


def open_packed_model(path: Path) -> dict[str, str]:
    """Unpack and check an archive or folder; return its files by ESPnet's option names.

    The model is not changed: unpacked files and rewritten configs are in the cache folder. Raise
    InputError if the archive is damaged or unsafe, a file is missing, or a config refers to a file
    outside of the model.
    """
    path = path.absolute()
    name = digest_of_inputs([], [], {"path": str(path)})[:16]
    return in_cache(f"packed/{name}", partial(_open_in, path))


def _open_in(path: Path, cached: Path) -> dict[str, str]:
    files = [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]
    made_from = digest_of_inputs([], files, {"path": str(path)})
    model = PackedModel(path, path if path.is_dir() else cached / UNPACKED)
    with cached_output(cached, made_from) as staging:
        if staging is not None:
            folder = unpack(path, staging / UNPACKED) if path.is_file() else path
            for role, config in PackedModel(path, folder).configs(model.folder).items():
                write_yaml(staging / f"{role}.yaml", config)
    return {
        role: str(cached / f"{role}.yaml" if role in ROLES[CONFIGS] else file)
        for role, file in model.files().items()
    }


@dataclass(frozen=True)
class PackedModel:
    name: Path  # archive or folder, for messages
    folder: Path  # of the files

    def files(self) -> dict[str, Path]:
        """Return weights and configs by option.

        Raise InputError if ``meta.yaml`` is missing, or names a file that is not in the model.
        """
        if not self._is_inside(META) or not (self.folder / META).is_file():
            raise InputError(f"{self.name}: no {META}; give a model that espnet2.bin.pack wrote")
        meta, files = read_config(self.folder / META, REMEDY), {}
        for kind, roles in ROLES.items():
            named = meta.get(kind) or {}
            if not isinstance(named, Mapping):
                raise InputError(f"{self.name}: {META}: {kind}: is not a mapping; {REMEDY}")
            for role, file in named.items():
                where = f"{self.name}: {META}: {kind}.{role}"
                if role not in roles:
                    raise InputError(f"{where}: allowed: {', '.join(roles)}; {REMEDY}")
                if not isinstance(file, str) or not self._is_inside(file):
                    raise InputError(f"{where}: {file!r}; allowed: files of the model; {REMEDY}")
                if not (self.folder / file).is_file():
                    raise InputError(f"{where}: {file!r} is not there; {REMEDY}")
                files[role] = self.folder / file
        return files

    def configs(self, final: Path) -> dict[str, dict]:
        """Return configs by option, with absolute paths to the model's files in ``final``.

        Raise InputError if a config refers to a file outside of the model.
        """
        return {
            role: map_paths(
                read_config(file, REMEDY), partial(self._absolute, role=role, final=final)
            )
            for role, file in self.files().items()
            if role in ROLES[CONFIGS]
        }

    def _absolute(self, value: str, role: str, field: str, final: Path) -> str:
        if self._is_inside(value) and (self.folder / value).exists():
            return str(final / os.path.relpath(self.folder / value, self.folder))
        if "://" in value or is_file_here(value) or is_file_here(str(self.folder / value)):
            raise InputError(
                f"{self.name}: {role}: {field}: {value!r}; allowed: files of the model; {REMEDY}"
            )
        if field.endswith(STATISTICS):
            raise InputError(f"{self.name}: {role}: {field}: {value!r} is not in it; {REMEDY}")
        return value

    def _is_inside(self, name: str) -> bool:
        """Return whether a path, with links followed, is in the folder."""
        path = self.folder / name
        if "\0" in name or not Path(os.path.normpath(path)).is_relative_to(self.folder):
            return False
        # A hub's client stores files next to its snapshots, which have links to them.
        is_snapshot = self.folder.parent.name == "snapshots"
        root = self.folder.parents[1] if is_snapshot else self.folder
        return path.resolve().is_relative_to(root.resolve())


def map_paths(value: Any, change: Callable[..., str], field: str = "") -> Any:
    """Return a config, or a part, in which ``change(text, field=...)`` replaces possible paths."""
    is_token_list = field == TOKENS and isinstance(value, list)
    if field in OF_TRAINING or field.rpartition(".")[2] in DOWNLOADS or is_token_list:
        return value
    if isinstance(value, Mapping):
        inside = f"{field}." if field else ""
        return {name: map_paths(part, change, f"{inside}{name}") for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [map_paths(part, change, f"{field}[{place}]") for place, part in enumerate(value)]
    # Outside PATHS, values without a slash are no paths, even if a file here has this name.
    if not isinstance(value, str) or not ("/" in value or field in PATHS):
        return value
    return change(value, field=field)


def is_file_here(name: str) -> bool:
    """Return whether a config's text is the path of a file or folder."""
    return "\0" not in name and os.path.lexists(os.path.expanduser(name))


def pack_model(model: Mapping[str, Path], more: Sequence[Path], archive: Path) -> None:
    """Pack weights and configs as ``espnet2.bin.pack``, with all files that the configs name.

    Raise InputError if a file of ``model`` or ``more`` is missing, or if a file is not below the
    current folder.
    """
    inside = {role: _below_here(file, role) for role, file in model.items()}
    names = dict.fromkeys([*inside.values(), *(_below_here(file, "option") for file in more)])
    kinds = {kind: {role: inside[role] for role in ROLES[kind] if role in inside} for kind in ROLES}
    for role, file in kinds[CONFIGS].items():
        add = partial(_add_path, config=role, names=names)
        map_paths(read_config(Path(file), "train the model again"), add)
    meta = {**kinds, "espnet": version("espnet"), "torch": str(torch.__version__)}
    staging = archive.with_name(f".{archive.name}.partial")
    try:
        with naming(archive), zipfile.ZipFile(staging, "w") as packed:
            packed.writestr(META, yaml.safe_dump(meta))
            for path in map(Path, names):
                files = sorted(path.rglob("*")) if path.is_dir() else [path]
                for file in filter(Path.is_file, files):
                    packed.write(file)
        staging.replace(archive)
    finally:
        staging.unlink(missing_ok=True)


def _below_here(path: Path, option: str) -> str:
    """Return a file's name in the archive: its path relative to the current folder."""
    name = os.path.relpath(path)
    if not path.exists():
        raise InputError(f"{option}: {path}: no such file; packing needs it")
    if name == os.curdir or os.pardir in Path(name).parts:
        raise InputError(f"{option}: {path}; only files below the current folder can be packed")
    return name


def _add_path(name: str, field: str, config: str, names: dict[str, None]) -> str:
    if is_file_here(name):
        if Path(name).is_absolute():
            raise InputError(
                f"{config}: {field}: {name!r}; only relative paths below the current folder "
                "can be packed; training that is started in this folder writes such paths"
            )
        names[_below_here(Path(name), f"{config}: {field}")] = None
    elif field.endswith(STATISTICS):
        where = "packing needs it; run this command in the folder of the recipe"
        raise InputError(f"{config}: {field}: {name!r}: no such file; {where}")
    return name
