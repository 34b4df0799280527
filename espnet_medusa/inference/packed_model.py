"""ESPnet's packed models: strangers', so what they name lies in their own folder or is refused.

A folder of a hub, or an archive that ``espnet2.bin.pack`` wrote. ``meta.yaml`` names weights
(``files``) and configs (``yaml_files``) by the options that take them. An experiment's folder,
the user's own, may name files anywhere, as ESPnet's training does.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from espnet_medusa.convert.experiment import write_yaml
from espnet_medusa.errors import InputError
from espnet_medusa.files.archive import unpack
from espnet_medusa.files.cache_folder import cache_folder
from espnet_medusa.files.output_folder import fingerprint, is_up_to_date, staged_output
from espnet_medusa.options import read_config

META, UNPACKED = "meta.yaml", "model"
WEIGHTS, CONFIGS = "files", "yaml_files"
ROLES = {
    WEIGHTS: ("asr_model_file", "lm_file", "ngram_file", "bpemodel"),
    CONFIGS: ("asr_train_config", "lm_train_config"),
}
TOKENS = "token_list"
PATHS = (TOKENS, "bpemodel", "non_linguistic_symbols")  # which need not look like one
# Where training had its data and left its results: decoding opens none of them.
OF_TRAINING = (
    "config", "deepspeed_config", "output_dir", "init_param", "dist_init_method", "noise_scp",
    "rir_scp", "train_data_path_and_name_and_type", "train_shape_file",
    "valid_data_path_and_name_and_type", "valid_shape_file",
)  # fmt: skip
# Where ESPnet's encoders put what they fetch: nothing of the model's.
DOWNLOADS = ("download_dir", "w2v_dir_path", "hubert_dir_path", "avhubert_dir_path")
HUB = "https://huggingface.co/"
REMEDY = "fetch it again; if you trust it, unpack it yourself and give --asr_train_config"


def fetch_packed_model(model_tag: str) -> Path:
    """Find a packed model.

    Args:
        model_tag: An archive, a tag of ESPnet's model zoo, or a name of a hub.

    Returns:
        The archive, or a folder in the hub's cache.

    Raises:
        InputError: There is none, or it cannot be fetched.
    """
    path = Path(model_tag).expanduser()
    if path.is_file():
        return path
    try:
        from espnet_model_zoo.downloader import ModelDownloader
    except ImportError as error:
        raise InputError(
            f"model_tag: {model_tag!r} is no Whisper; for models of ESPnet's zoo: "
            "pip install espnet_model_zoo"
        ) from error
    name = model_tag.removeprefix(HUB)
    try:
        # The zoo's own unpacking writes where the archive says.
        downloader = ModelDownloader()
        if name != model_tag or downloader.get_url(name=name) == "huggingface.co":
            return Path(downloader.huggingface_download(name=name))
        return Path(downloader.download(name=name))
    except (OSError, RuntimeError, LookupError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise InputError(
            f"model_tag: {model_tag!r} was not fetched: {reason}; check the name and the network"
        ) from error


def open_packed_model(path: Path) -> dict[str, str]:
    """Unpack and check a model.

    Args:
        path: Archive or folder. It stays as it is: what is unpacked, and configs in which paths
            are whole, are kept in the cache folder.

    Returns:
        Its files by ESPnet's names of options.

    Raises:
        InputError: The archive is damaged or unsafe, a file is missing, or a config names
            something outside of the model.
    """
    path = path.absolute()
    place = cache_folder() / "packed" / fingerprint([], [], {"path": str(path)})[:16]
    files = [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]
    made_from = fingerprint([], files, {"path": str(path)})
    model = PackedModel(path, path if path.is_dir() else place / UNPACKED)
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):  # jobs of one recipe start together
        if not is_up_to_date(place, made_from):
            with staged_output(place, made_from) as staging:
                now = path
                if path.is_file():
                    now = unpack(path, staging / UNPACKED)
                for role, config in PackedModel(path, now).configs(model.folder).items():
                    write_yaml(staging / f"{role}.yaml", config)
    return {
        role: str(place / f"{role}.yaml" if role in ROLES[CONFIGS] else file)
        for role, file in model.files().items()
    }


@dataclass(frozen=True)
class PackedModel:
    """Files that are there.

    Attributes:
        name: Archive or folder, for messages.
        folder: Of the files.
    """

    name: Path
    folder: Path

    def files(self) -> dict[str, Path]:
        """Weights and configs by option.

        Raises:
            InputError: There is no ``meta.yaml``, or it names what is no file of the model.
        """
        if not self._is_inside(META) or not (self.folder / META).is_file():
            raise InputError(f"{self.name}: no {META}; give a model that espnet2.bin.pack wrote")
        meta, found = read_config(self.folder / META, REMEDY), {}
        for kind, roles in ROLES.items():
            said = meta.get(kind) or {}
            if not isinstance(said, Mapping):
                raise InputError(f"{self.name}: {META}: {kind}: no files by option; {REMEDY}")
            for role, file in said.items():
                where = f"{self.name}: {META}: {kind}.{role}"
                if role not in roles:
                    raise InputError(f"{where}: allowed: {', '.join(roles)}; {REMEDY}")
                if not isinstance(file, str) or not self._is_inside(file):
                    raise InputError(f"{where}: {file!r}; allowed: files of the model; {REMEDY}")
                if not (self.folder / file).is_file():
                    raise InputError(f"{where}: {file!r} is not there; {REMEDY}")
                found[role] = self.folder / file
        return found

    def configs(self, final: Path) -> dict[str, dict]:
        """Configs by option; names of the model's files are whole paths.

        Args:
            final: The folder in these.

        Raises:
            InputError: One names something outside of the model.
        """
        return {
            role: each_name(read_config(file, REMEDY), partial(self._whole, role=role, final=final))
            for role, file in self.files().items()
            if role in ROLES[CONFIGS]
        }

    def _whole(self, value: str, role: str, field: str, final: Path) -> str:
        if self._is_inside(value) and (self.folder / value).exists():
            return str(final / os.path.relpath(self.folder / value, self.folder))
        if "://" in value or is_there(value) or is_there(str(self.folder / value)):
            raise InputError(
                f"{self.name}: {role}: {field}: {value!r}; allowed: files of the model; {REMEDY}"
            )
        return value

    def _is_inside(self, name: str) -> bool:
        """Whether a name in the folder stays there, links followed."""
        path = self.folder / name
        if "\0" in name or not Path(os.path.normpath(path)).is_relative_to(self.folder):
            return False
        # A hub's client keeps files beside its snapshots, and links to them.
        cached = self.folder.parent.name == "snapshots"
        root = self.folder.parents[1] if cached else self.folder
        return path.resolve().is_relative_to(root.resolve())


def each_name(value: Any, change: Callable[..., str], field: str = "") -> Any:
    """A config in which all that may name a file is changed.

    Args:
        value: The config, or a part of it.
        change: Takes a name and its ``field``.
        field: Of the part.
    """
    if field in OF_TRAINING or (field == TOKENS and isinstance(value, list)):
        return value
    if field.rpartition(".")[2] in DOWNLOADS:
        return value
    if isinstance(value, Mapping):
        inside = f"{field}." if field else ""
        return {name: each_name(part, change, f"{inside}{name}") for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [each_name(part, change, f"{field}[{place}]") for place, part in enumerate(value)]
    # Names of classes and the like may be those of files here, too.
    if not isinstance(value, str) or not ("/" in value or field in PATHS):
        return value
    return change(value, field=field)


def is_there(name: str) -> bool:
    """Whether a config's text names a file or folder here."""
    return "\0" not in name and os.path.lexists(os.path.expanduser(name))
