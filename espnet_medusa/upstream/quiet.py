"""Import ESPnet without its messages, in less than half the time.

Importing any part of ESPnet imports nearly all of it, with three costs:

- messages: a phonemizer downloads a dictionary, attention prints that an optional package is
  missing, and decorators of torch are deprecated;
- typeguard, which rewrites every function to check its arguments;
- modules that decoding and training rarely use: aligners, speech enhancement, translation.

This module drops the messages, excludes ESPnet from typeguard, and defers the rarely used modules.
"""

import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import SourceFileLoader
from io import StringIO
from types import ModuleType


class OnDemand(SourceFileLoader):
    """Run a module when one of its attributes is read."""

    def exec_module(self, module: ModuleType) -> None:
        """Define only ``__getattr__``, which runs the module."""

        def load(name: str) -> object:
            if name.startswith("__"):  # inspect reads such names of all modules
                raise AttributeError(name)
            del module.__getattr__
            super(OnDemand, self).exec_module(module)
            return getattr(module, name)

        module.__getattr__ = load


class Deferred:
    """Proxy for a class or a function of a module that may not have run yet.

    Args:
        find: Runs the module and returns its object of a name.
    """

    def __init__(self, find: Callable[[str], object], name: str):
        self._find, self._name = find, name

    def __call__(self, *args, **options) -> object:
        return self._find(self._name)(*args, **options)

    def __getattr__(self, name: str) -> object:
        return getattr(self._find(self._name), name)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._find(self._name))


class NamesOnDemand(SourceFileLoader):
    """Run a module when a name imported from it is called, read, or used by ``isinstance``."""

    def exec_module(self, module: ModuleType) -> None:
        """Define only ``__getattr__``, which returns a ``Deferred`` for each name."""

        def find(name: str) -> object:
            if "__getattr__" in vars(module):
                del module.__getattr__
                super(NamesOnDemand, self).exec_module(module)
            return getattr(module, name)

        def defer(name: str) -> Deferred:
            if name.startswith("__"):
                raise AttributeError(name)
            return Deferred(find, name)

        module.__getattr__ = defer


class WithoutFlashAttention(SourceFileLoader):
    """Run a module and drop its message that Flash Attention is missing."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module; ESPnet 202511 prints the message to stdout, 202611 to stderr."""
        with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
            super().exec_module(module)
        for captured, stream in ((stdout, sys.stdout), (stderr, sys.stderr)):
            for line in captured.getvalue().splitlines():
                if not line.startswith("Failed to import Flash Attention"):
                    print(line, file=stream)


class Unchecked(SourceFileLoader):
    """Run typeguard so that it ignores functions of ``UNCHECKED``, as under ``python -O``."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then wrap its decorator."""
        super().exec_module(module)
        check = module.typechecked

        def typechecked(target=None, **options):
            if module_of(target).startswith(UNCHECKED):
                return target
            return check(target, **options)

        module.typechecked = typechecked


def module_of(target: object) -> str:
    """Return the name of the module that defines an object, also if it is run with ``-m``."""
    name = getattr(target, "__module__", None) or ""
    spec = getattr(target, "__globals__", {}).get("__spec__")
    return spec.name if name == "__main__" and spec is not None else name


UNCHECKED = ("espnet.", "espnet2.", "inflect")  # ESPnet imports inflect
LOADERS = {
    "g2p_en": OnDemand,
    "hydra": OnDemand,
    "scipy.signal": OnDemand,
    "whisper.timing": NamesOnDemand,  # of openai-whisper, whose normalizers ESPnet imports
    "espnet2.gan_tts.jets.alignments": NamesOnDemand,
    "espnet2.tasks.enh_s2t": NamesOnDemand,
    "typeguard": Unchecked,
    # ESPnet 202511; ESPnet 202611.
    "espnet.nets.pytorch_backend.transformer.attention": WithoutFlashAttention,
    "espnet2.legacy.nets.pytorch_backend.transformer.attention": WithoutFlashAttention,
}


def drop_warnings() -> None:
    """Ignore the two warnings of ESPnet's imports."""
    warnings.filterwarnings("ignore", r"`torch\.cuda\.amp\.", FutureWarning, r"espnet2?\.")
    # Raised when Python compiles ESPnet's cleaner; the warning's module is then a file path.
    warnings.filterwarnings("ignore", '"is not" with', SyntaxWarning, ".*tacotron_cleaner")
