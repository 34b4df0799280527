"""Import ESPnet without its messages, in a fraction of the time.

Importing any part of ESPnet imports nearly all of it. This module drops messages (a phonemizer's
download, missing optional packages, deprecated decorators of torch) and excludes ESPnet from
typeguard, which rewrites every function to check its arguments. This package's commands also defer
modules that decoding and training rarely use: other tasks, aligners, transformers' models.
"""

import builtins
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import resolve_name
from io import StringIO
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch


class OnDemand(SourceFileLoader):
    """Run a module when one of its attributes is read."""

    def exec_module(self, module: ModuleType) -> None:
        def load(name: str) -> object:
            if name.startswith("__"):  # inspect reads such names of all modules
                raise AttributeError(name)
            del module.__getattr__
            super(OnDemand, self).exec_module(module)
            return getattr(module, name)

        module.__getattr__ = load


class Deferred:
    """Proxy for a class or a function of a module, which is imported when it is used."""

    def __init__(self, module: str, name: str):
        self._module, self._name = module, name

    def _find(self) -> Any:
        return getattr(import_module(self._module), self._name)

    def __call__(self, *args, **options) -> Any:
        return self._find()(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)

    def __instancecheck__(self, instance: object) -> bool:
        # A class whose module is not imported has no instances.
        return self._module in sys.modules and isinstance(instance, self._find())


class DeferringLoader(SourceFileLoader):
    """Run a module of ``DEFERRED`` so that it imports ``Deferred`` names from the slow modules."""

    def exec_module(self, module: ModuleType) -> None:
        def import_or_defer(name, globals=None, locals=None, fromlist=(), level=0):
            absolute = resolve_name("." * level + name, module.__package__)
            if fromlist and absolute in DEFERRED[module.__name__]:
                return SimpleNamespace(**{part: Deferred(absolute, part) for part in fromlist})
            return __import__(name, globals, locals, fromlist, level)

        vars(module)["__builtins__"] = vars(builtins) | {"__import__": import_or_defer}
        super().exec_module(module)


class WithoutFlashAttention(SourceFileLoader):
    """Run a module and drop its message that Flash Attention is missing."""

    def exec_module(self, module: ModuleType) -> None:
        # ESPnet 202511 prints the message to stdout, 202611 to stderr.
        with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
            super().exec_module(module)
        for captured, stream in ((stdout, sys.stdout), (stderr, sys.stderr)):
            for line in captured.getvalue().splitlines():
                if not line.startswith("Failed to import Flash Attention"):
                    print(line, file=stream)


class WithoutCompiler(SourceFileLoader):
    """Run a module whose decorator ``torch.compiler.disable`` would import torch's compiler.

    The decorator only marks functions for the compiler.
    """

    def exec_module(self, module: ModuleType) -> None:
        from torch import compiler

        def disable(function):
            function._torchdynamo_disable = True
            return function

        with patch.object(compiler, "disable", disable):
            super().exec_module(module)


class Unchecked(SourceFileLoader):
    """Run typeguard so that it ignores functions of ``UNCHECKED``, as under ``python -O``."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        check = module.typechecked

        def typechecked(target=None, **options):
            unchecked = module_of(target).startswith(UNCHECKED)
            return target if unchecked else check(target, **options)

        module.typechecked = typechecked


def module_of(target: object) -> str:
    """Return the name of the module that defines an object, also if it is run with ``-m``."""
    name = getattr(target, "__module__", None) or ""
    spec = getattr(target, "__globals__", {}).get("__spec__")
    return spec.name if name == "__main__" and spec is not None else name


UNCHECKED = ("espnet.", "espnet2.", "inflect")  # ESPnet imports inflect
# Slow modules, by the module that imports them and rarely uses their names.
DEFERRED = {
    "espnet2.bin.asr_inference": (
        "espnet2.asr.decoder.hugging_face_transformers_decoder", "espnet2.asr.decoder.s4_decoder",
        "espnet2.tasks.asr", "espnet2.tasks.enh_s2t", "espnet2.tasks.lm", "transformers",
    ),
    "espnet2.main_funcs.calculate_all_attentions": ("espnet2.gan_tts.jets.alignments",),
    "espnet2.text.build_tokenizer": ("espnet2.text.qwen2audio_tokenizer",),
    "espnet2.text.hugging_face_token_id_converter": ("transformers",),
    "espnet2.text.hugging_face_tokenizer": ("transformers",),
    "whisper.transcribe": ("whisper.timing",),  # ESPnet imports openai-whisper's normalizers
}  # fmt: skip
LOADERS = {  # of programs that decode with this package
    "g2p_en": OnDemand,
    "typeguard": Unchecked,
    # ESPnet 202511; ESPnet 202611.
    "espnet.nets.pytorch_backend.transformer.attention": WithoutFlashAttention,
    "espnet2.legacy.nets.pytorch_backend.transformer.attention": WithoutFlashAttention,
}
LOADERS_OF_COMMANDS = {
    **LOADERS,
    **dict.fromkeys(DEFERRED, DeferringLoader),
    "hydra": OnDemand,
    "scipy.signal": OnDemand,
    "espnet2.legacy.nets.pytorch_backend.nets_utils": WithoutCompiler,
}


def drop_warnings() -> None:
    """Ignore the two warnings of ESPnet's imports."""
    warnings.filterwarnings("ignore", r"`torch\.cuda\.amp\.", FutureWarning, r"espnet2?\.")
    # Raised when Python compiles ESPnet's cleaner; the warning's module is then a file path.
    warnings.filterwarnings("ignore", '"is not" with', SyntaxWarning, ".*tacotron_cleaner")
