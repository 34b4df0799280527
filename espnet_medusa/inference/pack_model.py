"""A model packed with all that its configs name, for ``--model_tag`` elsewhere."""

import os
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import espnet
import torch
import yaml

from espnet_medusa.errors import InputError
from espnet_medusa.files.atomic import naming
from espnet_medusa.inference.packed_model import CONFIGS, META, ROLES, each_name, is_there
from espnet_medusa.options import read_config


def pack_model(model: Mapping[str, Path], more: Sequence[Path], archive: Path) -> None:
    """Pack a model as ``espnet2.bin.pack`` does, with all that its configs name, links followed.

    Args:
        model: Weights and configs by ESPnet's names of options.
        more: Files and folders beside them.
        archive: Zip archive to write.

    Raises:
        InputError: A file is missing or not below this folder, or a config names one that is not.
    """
    inside = {role: _below_here(file, role) for role, file in model.items()}
    names = dict.fromkeys([*inside.values(), *(_below_here(file, "option") for file in more)])
    kinds = {kind: {role: inside[role] for role in ROLES[kind] if role in inside} for kind in ROLES}
    for role, file in kinds[CONFIGS].items():
        each_name(read_config(Path(file), "train anew"), partial(_note_name, config=role, to=names))
    meta = {**kinds, "espnet": espnet.__version__, "torch": str(torch.__version__)}
    staging = archive.with_name(f".{archive.name}.partial")
    try:
        with naming(archive), zipfile.ZipFile(staging, "w") as packed:
            packed.writestr(META, yaml.safe_dump(meta))
            for name in names:
                for file in _files_of(Path(name)):
                    packed.write(file)
        staging.replace(archive)
    finally:
        staging.unlink(missing_ok=True)


def _below_here(path: Path, option: str) -> str:
    """A file's name in the archive: that from this folder."""
    name = os.path.relpath(path)
    if not path.exists():
        raise InputError(f"{option}: {path}: no such file; packing needs it")
    if name == os.curdir or os.pardir in Path(name).parts:
        raise InputError(f"{option}: {path}; allowed to pack: what is below this folder")
    return name


def _note_name(name: str, field: str, config: str, to: dict[str, None]) -> str:
    if is_there(name):
        if Path(name).is_absolute():
            raise InputError(
                f"{config}: {field}: {name!r}; allowed to pack: names of files below this folder, "
                "as training in it writes them"
            )
        to[_below_here(Path(name), f"{config}: {field}")] = None
    return name


def _files_of(path: Path) -> list[Path]:
    return [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]
