"""ESPnet's imports without their noise, in less than half the time.

Whoever imports ESPnet imports all of it: a phonemizer that asks the network for a dictionary, an
attention that prints which optional package is missing, decorators of a name that torch renamed,
and typeguard, which rewrites every function so that it checks its arguments. Exactly these are
kept back. The phonemizer comes, dictionary and all, when it is used.
"""

import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
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


class WithoutFlashAttention(SourceFileLoader):
    """Runs a module and drops the line that says so of Flash Attention."""

    def exec_module(self, module: ModuleType) -> None:
        """Run it."""
        with redirect_stdout(StringIO()) as printed:
            super().exec_module(module)
        for line in printed.getvalue().splitlines():
            if not line.startswith("Failed to import Flash Attention"):
                print(line)


class Unchecked(SourceFileLoader):
    """typeguard that leaves functions of ``UNCHECKED`` as they are, as under ``python -O``."""

    def exec_module(self, module: ModuleType) -> None:
        """Run it, then put a decorator before its own."""
        super().exec_module(module)
        check = module.typechecked

        def typechecked(target=None, **options):
            if (getattr(target, "__module__", None) or "").startswith(UNCHECKED):
                return target
            return check(target, **options)

        module.typechecked = typechecked


UNCHECKED = ("espnet.", "espnet2.", "inflect")  # ESPnet imports inflect
LOADERS = {
    "g2p_en": OnDemand,
    "typeguard": Unchecked,
    # In ESPnet 202511, and in its master.
    "espnet.nets.pytorch_backend.transformer.attention": WithoutFlashAttention,
    "espnet2.legacy.nets.pytorch_backend.transformer.attention": WithoutFlashAttention,
}


class Finder(MetaPathFinder):
    """Finds the modules of ``LOADERS`` where Python finds them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Importlib's interface."""
        loader = LOADERS.get(name)
        spec = PathFinder.find_spec(name, path, target) if loader else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = loader(name, spec.origin)
            return spec
        return None


def install() -> None:
    """Take effect for what is imported from now on."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Finder())
    warnings.filterwarnings("ignore", r"`torch\.cuda\.amp\.", FutureWarning, r"espnet2?\.")
    # Of its cleaner, when Python first compiles it; the module is a path then.
    warnings.filterwarnings("ignore", '"is not" with', SyntaxWarning, ".*tacotron_cleaner")
