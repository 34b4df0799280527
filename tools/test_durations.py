"""Write tables of the durations of tests from pytest's reports (--junitxml).

    python tools/test_durations.py REPORT --files tests/durations.json
    python tools/test_durations.py BEFORE AFTER --table bench/results/test_durations.md

--files: seconds of each test file, for `make quick`. --table: the slowest test functions of the first
report, and the same in the last one. A test is found again if its file and its name are the same; its
folder may differ.
"""

import argparse
import json
import platform
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

SLOWEST = 200
COMMAND = "make test PYTEST_ARGS=--junitxml=report.xml"


@dataclass
class Durations:
    """Numbers of cases and seconds of a report, by test function and by file."""

    wall_s: float
    functions: dict[str, list] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))
    files: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def cases(self) -> int:
        return sum(count for count, _ in self.functions.values())

    @property
    def seconds(self) -> float:
        return sum(self.files.values())


def read_report(path: Path) -> Durations:
    suite = next(ElementTree.parse(path).iter("testsuite"))
    durations = Durations(float(suite.get("time")))
    for case in suite.iter("testcase"):
        file = f"{case.get('classname').replace('.', '/')}.py"
        name, seconds = case.get("name").partition("[")[0], float(case.get("time"))
        of_function = durations.functions[f"{Path(file).stem}::{name}"]
        of_function[0] += 1
        of_function[1] += seconds
        durations.files[file] += seconds
    return durations


def processor() -> str:
    """Return the name of this machine's processor and its number of cores."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    name = found[1] if found else platform.processor()
    return f"{name}, {len(re.findall('^processor', CPUINFO.read_text(), re.MULTILINE))} cores"


CPUINFO = Path("/proc/cpuinfo")


def write_table(path: Path, reports: list[Durations], machine: str) -> None:
    first, last = reports[0], reports[-1]
    titles = ["before", "after"][: len(reports)]
    lines = ["# Durations of the tests", "", f"```\n{COMMAND}\n```", ""]
    lines += [f"{machine}; two workers. The {SLOWEST} slowest test functions, in seconds.", ""]
    columns = [f"{title} [s]|cases" for title in titles]
    lines += [f"|test|{'|'.join(columns)}|", f"|---|{'---:|' * 2 * len(titles)}"]
    totals = (f"{one.seconds:.0f}|{one.cases}" for one in reports)
    lines += [f"|all, together|{'|'.join(totals)}|"]
    lines += [f"|all, on two workers|{'|'.join(f'{one.wall_s:.0f}|' for one in reports)}|"]
    slowest = sorted(first.functions, key=lambda name: -first.functions[name][1])[:SLOWEST]
    for name in slowest:
        cells = (one.functions[name] if name in one.functions else None for one in reports)
        shown = (f"{cell[1]:.2f}|{cell[0]}" if cell else "|" for cell in cells)
        lines.append(f"|{name.replace('::', ', ')}|{'|'.join(shown)}|")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
