"""What the plugin puts into modules of ESPnet once they are loaded; no file is changed."""

from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TextIO

import yaml

from espnet_medusa.errors import InputError
from espnet_medusa.files.yaml_text import DUMPER
from espnet_medusa.options import read_yaml

MEND = "mend the file or its path"


class Changing(SourceFileLoader):
    """Runs a module, then changes it."""

    def exec_module(self, module: ModuleType) -> None:
        """Importlib's interface."""
        super().exec_module(module)
        self.change(module)

    @staticmethod
    def change(module: ModuleType) -> None:
        """What is done to the module."""
        raise NotImplementedError


class Registering(Changing):
    """ESPnet's ASR task: its tables get the plugin's classes."""

    register: Callable[[], None]  # set by ``hooks.install``

    @classmethod
    def change(cls, module: ModuleType) -> None:
        """Register the plugin's classes."""
        cls.register()


class WithOurYAML(Changing):
    """ESPnet's tasks, which read and write an experiment's config with its tokens."""

    @staticmethod
    def change(module: ModuleType) -> None:
        """Give it a PyYAML that works as we do: in C, and with errors of one line."""
        _replace_safe_load(module, lambda stream: read_yaml(Path(stream.name), MEND))
        module.yaml_no_alias_safe_dump = _dump_without_aliases


class _WithoutAliases(DUMPER):
    """As ESPnet's own, which is in Python."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump_without_aliases(data: Any, stream: TextIO | None = None, **options: Any) -> str | None:
    return yaml.dump(data, stream, Dumper=_WithoutAliases, allow_unicode=True, **options)


class WithOurYAMLInParsers(Changing):
    """ESPnet's parser, which reads ``--config`` where nothing catches an error."""

    @staticmethod
    def change(module: ModuleType) -> None:
        """The same; an error ends the command."""

        def load(stream: TextIO) -> Any:
            try:
                return read_yaml(Path(stream.name), MEND)
            except InputError as error:
                raise SystemExit(f"error: {error}") from error

        _replace_safe_load(module, load)


def _replace_safe_load(module: ModuleType, load: Callable[[TextIO], Any]) -> None:
    module.yaml = SimpleNamespace(**vars(yaml) | {"safe_load": load})


class WithOurTokenizer(Changing):
    """ESPnet's tokenizer of Whisper's tokens, which fails with today's openai-whisper."""

    @staticmethod
    def change(module: ModuleType) -> None:
        """Replace the methods of its class."""
        from espnet_medusa.whisper.espnet_text import WhisperTokenizer

        replace_methods(module.OpenAIWhisperTokenizer, WhisperTokenizer)


class WithOurConverter(Changing):
    """ESPnet's converter between Whisper's tokens and their ids, which fails likewise."""

    @staticmethod
    def change(module: ModuleType) -> None:
        """Replace the methods of its class."""
        from espnet_medusa.whisper.espnet_text import WhisperTokenIDConverter

        replace_methods(module.OpenAIWhisperTokenIDConverter, WhisperTokenIDConverter)


def replace_methods(theirs: type, ours: type) -> None:
    """Give a class another's methods: whoever has imported the class already has them, too."""
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
