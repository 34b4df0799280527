"""Write tables of the durations of tests from pytest's reports (--junitxml).

    python tools/test_durations.py REPORT --files tests/durations.json
    python tools/test_durations.py BEFORE AFTER --table bench/results/test_durations.md

--files: seconds of each test file, for `make quick`. --table: the slowest test functions of the
first report, and the same in the last one. A test is found again if its file and its name are the
same; its folder may differ.
"""

import argparse
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

SLOWEST = 200


@dataclass
class Durations:
    """Numbers of cases and seconds of a report, by test function and by file."""

    wall_s: float
    functions: dict[str, list] = field(default_factory=lambda: defaultdict(lambda: [0, 0.0]))
    files: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def read_report(path: Path) -> Durations:
    suite = next(ElementTree.parse(path).iter("testsuite"))
    durations = Durations(float(suite.get("time")))
    for case in suite.iter("testcase"):
        file = f"{case.get('classname').replace('.', '/')}.py"
        name, seconds = case.get("name").partition("[")[0], float(case.get("time"))
        of_function = durations.functions[f"{Path(file).stem}, {name}"]
        of_function[0] += 1
        of_function[1] += seconds
        durations.files[file] += seconds
    return durations


def machine() -> str:
    facts = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return f"{re.search('model name.*: (.*)', facts)[1]}, {os.cpu_count()} cores"


def make_table(reports: list[Durations]) -> str:
    titles = ["before", "after"][: len(reports)]
    walls = (f"{one.wall_s:.0f} s {title}" for one, title in zip(reports, titles, strict=True))
    lines = ["# Durations of the tests", "", "```", "make durations", "```", ""]
    lines += [f"{machine()}. On two workers {', '.join(walls)}. The {SLOWEST} slowest functions:"]
    lines += ["", f"|file and test|{'|'.join(f'{title} [s]|cases' for title in titles)}|"]
    lines += [f"|---|{'---:|' * 2 * len(titles)}"]
    totals = ([*zip(*one.functions.values(), strict=True)] for one in reports)
    lines += [f"|all|{'|'.join(f'{sum(s):.0f}|{sum(counts)}' for counts, s in totals)}|"]
    first = reports[0].functions
    for name in sorted(first, key=lambda name: -first[name][1])[:SLOWEST]:
        cells = (one.functions.get(name) for one in reports)
        row = "|".join(f"{cell[1]:.2f}|{cell[0]}" if cell else "|" for cell in cells)
        lines.append(f"|{name}|{row}|")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", nargs="+", type=Path, help="of pytest's --junitxml")
    parser.add_argument("--files", type=Path, help="JSON file to write")
    parser.add_argument("--table", type=Path, help="page to write")
    options = parser.parse_args()
    reports = [read_report(path) for path in options.reports]
    if options.files is not None:
        files = {name: round(seconds, 1) for name, seconds in sorted(reports[-1].files.items())}
        options.files.write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    if options.table is not None:
        options.table.write_text(make_table(reports), encoding="utf-8")


if __name__ == "__main__":
    main()
