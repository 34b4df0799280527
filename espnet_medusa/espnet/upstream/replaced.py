"""Changes of ESPnet's modules after they are loaded; no file is changed."""

from collections.abc import Callable
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TextIO

import yaml

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.yaml_text import DUMPER
from espnet_medusa.data.options import read_yaml
from espnet_medusa.networks.whisper.espnet_text import WhisperTokenIDConverter, WhisperTokenizer


class ChangingLoader(SourceFileLoader):
    """Run a module of ``CHANGES``, then change it."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        CHANGES[module.__name__](module)


def _replace_task_yaml(module: ModuleType) -> None:
    """Use PyYAML's C code for an experiment's config, which has a long token list."""
    _replace_safe_load(module, _load_yaml)
    module.yaml_no_alias_safe_dump = partial(yaml.dump, Dumper=_WithoutAliases, allow_unicode=True)


class _WithoutAliases(DUMPER):
    """ESPnet's dumper without aliases, based on PyYAML's C code."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _replace_parser_yaml(module: ModuleType) -> None:
    """Read ``--config`` with PyYAML's C code; exit with one line on an error, unlike ESPnet."""

    def load(stream: TextIO) -> Any:
        try:
            return _load_yaml(stream)
        except InputError as error:
            raise SystemExit(f"error: {error}") from error

    _replace_safe_load(module, load)


def _load_yaml(stream: TextIO) -> Any:
    return read_yaml(Path(stream.name), "correct the file or its path")


def _replace_safe_load(module: ModuleType, load: Callable[[TextIO], Any]) -> None:
    module.yaml = SimpleNamespace(**vars(yaml) | {"safe_load": load})


def _name_classes_without_module(module: ModuleType) -> None:
    """Let ESPnet3 log a model with an open sentencepiece file, whose class has no module."""
    name = module.build_qualified_name
    module.build_qualified_name = lambda value: (
        name(value) if hasattr(type(value), "__module__") else repr(value)
    )


def replace_methods(theirs: type, ours: type) -> None:
    """Replace the methods of a class in place, also for modules that imported it already."""
    for name, value in vars(ours).items():
        if callable(value):
            setattr(theirs, name, value)


CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "espnet2.tasks.abs_task": _replace_task_yaml,
    "espnet2.utils.config_argparse": _replace_parser_yaml,
    "espnet3.utils.logging_utils": _name_classes_without_module,
    # ESPnet's own classes fail with current openai-whisper.
    "espnet2.text.whisper_tokenizer": lambda module: replace_methods(
        module.OpenAIWhisperTokenizer, WhisperTokenizer
    ),
    "espnet2.text.whisper_token_id_converter": lambda module: replace_methods(
        module.OpenAIWhisperTokenIDConverter, WhisperTokenIDConverter
    ),
}
