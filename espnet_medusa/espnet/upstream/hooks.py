"""Import hooks: ESPnet modules with a custom loader."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from espnet_medusa.espnet.upstream import quiet, replaced


class Finder(MetaPathFinder):
    """Find modules as Python does, and set the loader of those in ``loaders``."""

    def __init__(self):
        self.loaders: dict[str, type[SourceFileLoader]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader = self.loaders.get(name)
        spec = PathFinder.find_spec(name, path, target) if loader else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = loader(name, spec.origin)
            return spec
        return None


def installed_finder() -> Finder:
    """Return this process's import hook; the first call installs it."""
    for finder in sys.meta_path:
        if isinstance(finder, Finder):
            return finder
    sys.meta_path.insert(0, Finder())
    return sys.meta_path[0]


def install_changes(registrations: Mapping[str, Callable[[], None]]) -> None:
    """Change the modules in ``replaced.CHANGES`` once imported; change already imported ones now.

    ``registrations`` add the plugin's classes to ESPnet's tables after a task is imported.
    """
    if installed_finder().loaders:
        return
    for task, register in registrations.items():
        replaced.CHANGES[task] = lambda module, register=register: register()
    for name, change in replaced.CHANGES.items():
        change_module(name, change)


def change_module(name: str, change: Callable[[ModuleType], None]) -> None:
    """Change a module once it is imported, or now."""
    replaced.CHANGES[name] = change
    installed_finder().loaders[name] = replaced.ChangingLoader
    if name in sys.modules:
        change(sys.modules[name])


def make_imports_quiet(
    loaders: Mapping[str, type[SourceFileLoader]] = quiet.LOADERS_OF_COMMANDS,
) -> None:
    """Make ESPnet's imports quiet and fast; by default as in this package's commands."""
    installed_finder().loaders |= loaders
    quiet.drop_warnings()
