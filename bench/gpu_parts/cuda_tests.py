"""Run the tests that need a GPU."""

import subprocess
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpu_parts.part import Part, run

ROOT = Path(__file__).resolve().parents[2]
MARK = "cuda"


class TestsFailed(Exception):
    """Tests failed, or pytest did not finish."""


def measure(part: Part, args: Namespace) -> None:
    """Run --tests, or the files with such tests."""
    part.measure({"mark": MARK}, lambda: run_tests(args.tests or marked_files(ROOT / "tests")))


def marked_files(folder: Path) -> list[str]:
    """Return the test files that contain the mark; collecting all others takes half a minute."""
    files = sorted(folder.rglob("test_*.py"))
    return [str(path) for path in files if f"mark.{MARK}" in path.read_text(encoding="utf-8")]


def run_tests(paths: list[str]) -> dict[str, int]:
    """Return the numbers of tests and of skipped tests; TestsFailed names those that failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", MARK, f"--junitxml={report}"]
        status = subprocess.run([*command, *paths], cwd=ROOT).returncode
        counts, failed = read_report(report) if report.exists() else (Counter(), [])
    if status:
        names = f"{len(failed)} of {counts.total()}: {', '.join(failed)}"
        raise TestsFailed(names if failed else f"pytest: {pytest.ExitCode(status).name}")
    return {"tests": counts.total(), "skipped": counts["skipped"]}


def read_report(path: Path) -> tuple[Counter, list[str]]:
    """Read tests by outcome, and the names of failed tests, from JUnit's XML."""
    outcomes, failed = Counter(), []
    for test in ElementTree.parse(path).iter("testcase"):
        tags = {child.tag for child in test}
        bad = bool(tags & {"failure", "error"})
        outcomes["failed" if bad else "skipped" if "skipped" in tags else "passed"] += 1
        if bad:
            failed.append(f"{test.get('classname')}.{test.get('name')}")
    return outcomes, failed


main = partial(run, measure, ["tests"])

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
