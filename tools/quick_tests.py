"""Choose tests of what has changed, which take at most a minute and a half on two cores.

    python tools/quick_tests.py                 # of files that differ from HEAD, and of new ones
    python tools/quick_tests.py --base main     # of files that differ from a revision

Prints the chosen test files, those that matter most first, and names the others on stderr. A test
depends on the modules that it imports, directly or through others. First come the tests in the
folder of a changed module (tests/data/audio for espnet_medusa/data/audio), then those with the
fewest imports in between. Tests that run recipes in processes of their own come last: they can use
any module. tests/durations.json has the seconds of each file, which `make durations` writes.
"""

import argparse
import ast
import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, TESTS = "espnet_medusa", "tests"
DURATIONS = ROOT / TESTS / "durations.json"
NEW_FILE_S = 2.0  # of a file without a duration
START_S = 12.0  # until a worker has collected its tests
WORKERS = 2
PROCESSES = "warm_python.py"  # imported by tests that run commands
FAR = 100  # distance of their modules
# Tests of files that are not Python's, by the beginning of the path.
RECIPES, PAGES = ("tests/egs/", "tests/recipes/test_asr_sh.py"), ("tests/test_docs.py",)
OTHERS = {
    "egs/": RECIPES, "conf/": RECIPES, "bench/": ("tests/bench/",), "docs/": PAGES,
    "README.md": PAGES, "CONTRIBUTING.md": PAGES, "mkdocs.yml": PAGES, "Makefile": PAGES,
    "setup.py": ("tests/test_packaging.py",),
}  # fmt: skip


def changed_files(base: str) -> list[str]:
    """Return paths, relative to the repository, of files that differ from ``base`` or are new."""
    different = ["git", "diff", "--name-only", base]
    new = ["git", "ls-files", "--others", "--exclude-standard"]
    lines = [
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for command in (different, new)
    ]
    return sorted({*"".join(lines).splitlines()})


class Imports:
    """Imports between the package's modules, tests, and scripts that tests import.

    Modules are dotted names, other files paths relative to the repository.
    """

    def __init__(self) -> None:
        self.graph = grimp.build_graph(PACKAGE, cache_dir=None)
        self.folders = [ROOT / TESTS / "support", ROOT / TESTS / "endurance", ROOT / "bench"]
        self.folders += sorted(ROOT.glob("egs/*/asr1/local"))
        self.of, self.distances = cache(self._of), cache(self._distances)

    def _of(self, name: str) -> list[str]:
        """Return what a module or a file imports, of the package or of this repository's files."""
        if not name.endswith(".py"):
            return sorted(self.graph.find_modules_directly_imported_by(name))
        path, found = ROOT / name, set()
        for imported in imported_names(ast.parse(path.read_text(encoding="utf-8"))):
            if imported in self.graph.modules:
                found.add(imported)
            for folder in (path.parent, *self.folders):
                file = folder / f"{imported.replace('.', '/')}.py"
                if file.is_file():
                    found.add(str(file.relative_to(ROOT)))
                    break
        # Fixtures; those of all tests import what they need in their bodies.
        for folder in path.parents[: len(path.relative_to(ROOT).parts) - 2]:
            if (folder / "conftest.py").is_file():
                found.add(str((folder / "conftest.py").relative_to(ROOT)))
        return sorted(found - {name})

    def _distances(self, test: str) -> dict[str, int]:
        """Return the number of imports from a test to each module and file that it depends on."""
        found, waiting = {test: 0}, deque([test])
        while waiting:
            name = waiting.popleft()
            for imported in self.of(name):
                if imported not in found:
                    found[imported] = found[name] + 1
                    waiting.append(imported)
        if any(name.endswith(f"/{PROCESSES}") for name in found):
            found = dict.fromkeys(self.graph.modules, FAR) | found
        return found


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a file imports; for ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def nodes_of(path: str, imports: Imports) -> set[str]:
    """Return the modules or the file that a changed path stands for."""
    parts = Path(path).with_suffix("").parts
    if not path.startswith(f"{PACKAGE}/"):
        return {path}
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    if path.endswith(".py") and name in imports.graph.modules:
        return {name}
    package = ".".join(parts[:-1])  # of data, kernels, or a module that is gone
    while package not in imports.graph.modules:
        package = package.rpartition(".")[0]
    return {package, *imports.graph.find_children(package)}


def order_tests(paths: list[str], tests: list[str], imports: Imports, seconds: dict) -> list[str]:
    """Return the tests that depend on changed paths, the closest and shortest first."""
    targets = {path: nodes_of(path, imports) for path in paths}
    own = {path.replace(PACKAGE, TESTS, 1).rpartition("/")[0] for path in paths}
    others = [OTHERS[start] for start in OTHERS if any(path.startswith(start) for path in paths)]
    ranks = {}
    for test in tests:
        there = imports.distances(test)
        found = [there[name] for names in targets.values() for name in names if name in there]
        found += [1] * any(test.startswith(starts) for starts in others)
        if found:
            is_own = test in paths or str(Path(test).parent) in own
            ranks[test] = (not is_own, min(found), seconds.get(test, NEW_FILE_S))
    return sorted(ranks, key=ranks.get)


def within(tests: list[str], seconds: dict[str, float], limit_s: float) -> list[str]:
    """Return the first tests that workers run within a limit, and shorter ones after them."""
    left_s, chosen = (limit_s - START_S) * WORKERS, []
    for test in tests:
        if seconds.get(test, NEW_FILE_S) <= left_s:
            left_s -= seconds.get(test, NEW_FILE_S)
            chosen.append(test)
    return chosen


def all_tests() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in sorted((ROOT / TESTS).rglob("test_*.py"))]


def main(cmd: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", default="HEAD", help="revision to compare with")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit, on two cores")
    options = parser.parse_args(cmd)
    paths = changed_files(options.base)
    seconds = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.is_file() else {}
    tests = order_tests(paths, all_tests(), Imports(), seconds)
    chosen = within(tests, seconds, options.seconds)
    left_out = [test for test in tests if test not in chosen]
    report = f"{len(paths)} changed files; {len(chosen)} of {len(tests)} dependent test files"
    names = "".join(f"\n  {seconds.get(test, NEW_FILE_S):6.1f} s  {test}" for test in left_out)
    print(report + (f"; left out:{names}" if left_out else ""), file=sys.stderr)
    print(*chosen)


if __name__ == "__main__":
    main()
