"""ESPnet's imports without their noise, in less than half the time.

Whoever imports ESPnet imports all of it: a phonemizer that asks the network for a dictionary, an
attention that prints which optional package is missing, decorators of a name that torch renamed,
typeguard, which rewrites every function so that it checks its arguments, aligners with their
compiler, speech enhancement, translation and its metrics. Exactly these are kept back; what has a
use comes when it is used.
"""

import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib.machinery import SourceFileLoader
from io import StringIO
from types import ModuleType


class OnDemand(SourceFileLoader):
    """Runs a module when something of it is asked for."""

    def exec_module(self, module: ModuleType) -> None:
        """Leave nothing in the module but the way to its content."""

        def load(name: str) -> object:
            if name.startswith("__"):  # inspect looks at the names of all modules
                raise AttributeError(name)
            del module.__getattr__
            super(OnDemand, self).exec_module(module)
            return getattr(module, name)

        module.__getattr__ = load


class Later:
    """A class or a function of a module that has not run yet.

    Args:
        find: ``name -> the real one``, which runs the module.
        name: In the module.
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
    """Runs a module when a name of it is used: called, looked into, or asked for its instances."""

    def exec_module(self, module: ModuleType) -> None:
        """Leave ``Later`` in the place of names that others import."""

        def find(name: str) -> object:
            if "__getattr__" in vars(module):
                del module.__getattr__
                super(NamesOnDemand, self).exec_module(module)
            return getattr(module, name)

        def later(name: str) -> Later:
            if name.startswith("__"):
                raise AttributeError(name)
            return Later(find, name)

        module.__getattr__ = later


class WithoutFlashAttention(SourceFileLoader):
    """Runs a module and drops the line that says so of Flash Attention."""

    def exec_module(self, module: ModuleType) -> None:
        """Run it."""
        # ESPnet 202511 says it on stdout, 202611 on stderr.
        with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()) as warned:
            super().exec_module(module)
        for said, stream in ((printed, sys.stdout), (warned, sys.stderr)):
            for line in said.getvalue().splitlines():
                if not line.startswith("Failed to import Flash Attention"):
                    print(line, file=stream)


class Unchecked(SourceFileLoader):
    """typeguard that leaves functions of ``UNCHECKED`` as they are, as under ``python -O``."""

    def exec_module(self, module: ModuleType) -> None:
        """Run it, then put a decorator before its own."""
        super().exec_module(module)
        check = module.typechecked

        def typechecked(target=None, **options):
            if module_of(target).startswith(UNCHECKED):
                return target
            return check(target, **options)

        module.typechecked = typechecked


def module_of(target: object) -> str:
    """Name of the module that something was written in, also where it is run with ``-m``."""
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
    # In ESPnet 202511, and from 202610 on.
    "espnet.nets.pytorch_backend.transformer.attention": WithoutFlashAttention,
    "espnet2.legacy.nets.pytorch_backend.transformer.attention": WithoutFlashAttention,
}


def drop_warnings() -> None:
    """Drop the two that ESPnet's imports raise."""
    warnings.filterwarnings("ignore", r"`torch\.cuda\.amp\.", FutureWarning, r"espnet2?\.")
    # Of its cleaner, when Python first compiles it; the module is a path then.
    warnings.filterwarnings("ignore", '"is not" with', SyntaxWarning, ".*tacotron_cleaner")
