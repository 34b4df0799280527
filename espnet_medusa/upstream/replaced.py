"""Replacements in ESPnet's modules after they are loaded; no file is changed."""

from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TextIO

import yaml

from espnet_medusa.errors import InputError
from espnet_medusa.files.yaml_text import DUMPER
from espnet_medusa.options import read_yaml

REMEDY = "correct the file or its path"


class Changing(SourceFileLoader):
    """Run a module, then change it."""

    def exec_module(self, module: ModuleType) -> None:
        """Importlib's interface."""
        super().exec_module(module)
        self.change(module)

    @staticmethod
    def change(module: ModuleType) -> None:
        """Change the module."""
        raise NotImplementedError


class Registering(Changing):
    """Register the plugin's classes in the tables of ESPnet's ASR task."""

    register: Callable[[], None]  # set by ``hooks.install``

    @classmethod
    def change(cls, module: ModuleType) -> None:
        """Call ``register``."""
        cls.register()


class WithOurYAML(Changing):
    """Replace PyYAML in ESPnet's tasks, which read and write configs with long token lists."""

    @staticmethod
    def change(module: ModuleType) -> None:
        """Read and write YAML in C, with one-line errors."""
        _replace_safe_load(module, lambda stream: read_yaml(Path(stream.name), REMEDY))
        module.yaml_no_alias_safe_dump = _dump_without_aliases


class _WithoutAliases(DUMPER):
    """ESPnet's dumper without aliases, in C."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump_without_aliases(data: Any, stream: TextIO | None = None, **options: Any) -> str | None:
    return yaml.dump(data, stream, Dumper=_WithoutAliases, allow_unicode=True, **options)


class WithOurYAMLInParsers(Changing):
    """Replace PyYAML in ESPnet's parser, which reads ``--config`` and catches no error."""

    @staticmethod
    def change(module: ModuleType) -> None:
        """Read YAML in C; an error ends the command."""

        def load(stream: TextIO) -> Any:
            try:
                return read_yaml(Path(stream.name), REMEDY)
            except InputError as error:
                raise SystemExit(f"error: {error}") from error

        _replace_safe_load(module, load)


def _replace_safe_load(module: ModuleType, load: Callable[[TextIO], Any]) -> None:
    module.yaml = SimpleNamespace(**vars(yaml) | {"safe_load": load})


class WithOurTokenizer(Changing):
    """Replace ESPnet's Whisper tokenizer, which fails with current openai-whisper."""

    @staticmethod
    def change(module: ModuleType) -> None:
        """Replace the methods of the class."""
        from espnet_medusa.whisper.espnet_text import WhisperTokenizer

        replace_methods(module.OpenAIWhisperTokenizer, WhisperTokenizer)


class WithOurConverter(Changing):
    """Replace ESPnet's converter of Whisper's tokens and ids, which fails for the same reason."""

    @staticmethod
    def change(module: ModuleType) -> None:
        """Replace the methods of the class."""
        from espnet_medusa.whisper.espnet_text import WhisperTokenIDConverter

        replace_methods(module.OpenAIWhisperTokenIDConverter, WhisperTokenIDConverter)


def replace_methods(theirs: type, ours: type) -> None:
    """Replace the methods of a class in place, also for modules that imported it already."""
    for name, value in vars(ours).items():
        if callable(value):
            setattr(theirs, name, value)


LOADERS: dict[str, type[Changing]] = {
    "espnet2.tasks.asr": Registering,
    "espnet2.tasks.abs_task": WithOurYAML,
    "espnet2.utils.config_argparse": WithOurYAMLInParsers,
    "espnet2.text.whisper_tokenizer": WithOurTokenizer,
    "espnet2.text.whisper_token_id_converter": WithOurConverter,
}
