"""Import hooks: modules of ESPnet that load otherwise in a process that has the plugin."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from espnet_medusa.upstream import quiet, replaced

LOADERS: dict[str, type[SourceFileLoader]] = {**quiet.LOADERS, **replaced.LOADERS}


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


def install(register: Callable[[], None]) -> None:
    """Hook ESPnet's imports; modules that ``replaced`` names and are imported already are changed.

    Args:
        register: Adds the plugin's classes to ESPnet's tables, once its ASR task is imported.
    """
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    replaced.Registering.register = staticmethod(register)
    sys.meta_path.insert(0, Finder())
    quiet.drop_warnings()
    for name, loader in replaced.LOADERS.items():
        if name in sys.modules:
            loader.change(sys.modules[name])
