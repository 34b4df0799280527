"""Import hooks: ESPnet modules with a custom loader, in a process that imports the plugin."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from espnet_medusa.upstream import quiet, replaced

LOADERS: dict[str, type[SourceFileLoader]] = {
    **quiet.LOADERS,
    **dict.fromkeys(replaced.CHANGES, replaced.ChangingLoader),
}


class Finder(MetaPathFinder):
    """Find the modules of ``LOADERS`` as Python does, and set their loader."""

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


def install(register: Callable[[], None]) -> None:
    """Install the import hook, and change modules that are imported already.

    Args:
        register: Adds the plugin's classes to ESPnet's tables after its ASR task is imported.
    """
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    replaced.CHANGES[replaced.ASR_TASK] = lambda module: register()
    sys.meta_path.insert(0, Finder())
    quiet.drop_warnings()
    for name, change in replaced.CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])
