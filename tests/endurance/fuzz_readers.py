"""Fuzz each reader of untrusted files with a million inputs.

python tests/endurance/fuzz_readers.py --folder fuzzed --report tests/endurance/fuzz.md

Needs atheris, which looks for inputs that run code that none before did (pip install atheris). A
reader is a file of tests/endurance/fuzz: seeds, and what a right result is. The folder keeps inputs
that ran new code, the smallest of each defect with its traceback, and counts: another run goes on
from there. With --keep those inputs go to the tests; every run begins with them. A defect is
anything but an InputError of one line or a right result, more than a second of processor time, or
memory that the file's size does not justify. Exit status 1: there was one.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fuzz.folder import CORPUS, COUNTS, DEFECTS, ENDS, LOG, Counts, keep_inputs, read_counts
from fuzz.reader import IN_MEMORY

from espnet_medusa.bin.command_line import make_main, positive
from espnet_medusa.errors import InputError
from espnet_medusa.report.markdown import markdown_table

HERE = Path(__file__).resolve().parent
SUPPORT = HERE.parent / "support"
MOST_ENDS = 3  # of a reader's process, before it is given up
NAMES = tuple(
    sorted(path.stem for path in (HERE / "fuzz").glob("*.py") if "READER = " in path.read_text())
)


@dataclass(frozen=True)
class Result:
    """Result of fuzzing a reader."""

    name: str  # name of the reader
    counts: Counts  # outcomes of inputs, over all runs
    defects: tuple[str, ...] = ()  # names of distinct defects


def run_reader(name: str, folder: Path, executions: int, seed: int) -> Result:
    """Fuzz a reader until it has read this many inputs in all runs.

    Raises:
        InputError: There is no atheris.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ended = 0
    while (left := executions - read_counts(folder / COUNTS).executions) > 0:
        command = [sys.executable, "-m", "fuzz.engine", name, str(folder), str(left), str(seed)]
        with (
            tempfile.TemporaryDirectory(dir=scratch_parent()) as scratch,
            (folder / LOG).open("ab") as log,
        ):
            environment = engine_environment(scratch)
            done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
        ended += done.returncode != 0
        went_on = executions - read_counts(folder / COUNTS).executions < left
        if ended > MOST_ENDS or not went_on:
            break
    if not (folder / COUNTS).is_file():
        last = (folder / LOG).read_text(errors="replace").strip().splitlines()[-1:]
        raise InputError(f"{name}: {' '.join(last)}; see {folder / LOG}, pip install atheris")
    return read_result(name, folder)


def scratch_parent() -> str | None:
    """Return a folder in memory, if there is one."""
    return IN_MEMORY if os.path.isdir(IN_MEMORY) else None


def engine_environment(scratch: str) -> dict[str, str]:
    """Return the environment of a fuzzing process."""
    paths = [str(HERE), str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": scratch,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "TQDM_DISABLE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def read_result(name: str, folder: Path) -> Result:
    """From what a reader's process kept."""
    defects = [path.stem for path in sorted((folder / DEFECTS).glob("*.bin"))]
    defects += [f"ended: {path.name}" for path in sorted((folder / ENDS).glob("*"))]
    return Result(name, read_counts(folder / COUNTS), tuple(defects))


def report(results: Iterable[Result]) -> str:
    """The page."""
    rows, defects = [], []
    for result in results:
        counts = result.counts
        figures = [counts.executions, counts.refused, counts.read, len(result.defects)]
        rows.append([result.name, *(f"{figure:,}" for figure in figures)])
        defects += [f"- {result.name}: {defect}" for defect in result.defects]
    header = ["reader", "executions", "inputs refused", "read right", "defects"]
    table = markdown_table(header, rows, text_columns=1)
    found = "\n".join(["", "Defects:", "", *defects, ""]) if defects else ""
    return (
        "# Readers and hostile input\n\nWritten by `tests/endurance/fuzz_readers.py`. atheris "
        "generates inputs from a few small files. A reader must refuse each in one line or read "
        f"it correctly; any other outcome is a defect.\n\n{table}{found}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's options."""
    parser.add_argument("--readers", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--executions", type=positive, default=1_000_000, help="of each reader")
    parser.add_argument("--seed", type=positive, default=1)
    parser.add_argument("--folder", type=Path, required=True, help="kept between runs")
    parser.add_argument("--report", type=Path, help="table to write (.md)")
    parser.add_argument("--keep", action="store_true", help="inputs, in fuzz/corpus")


def work(args: argparse.Namespace) -> int:
    """Fuzz and write; the exit status."""
    for name in args.readers:
        result = run_reader(name, args.folder / name, args.executions, args.seed)
        print(f"{name}: {result.counts}; {', '.join(result.defects) or 'no defects'}", flush=True)
        if args.keep:
            keep_inputs(name, args.folder / name / CORPUS)
    done = [name for name in NAMES if (args.folder / name / COUNTS).is_file()]
    results = [read_result(name, args.folder / name) for name in done]
    text = report(results)
    print(text)
    if args.report is not None:
        args.report.write_text(text, encoding="utf-8")
    return int(any(result.defects for result in results))


main = make_main("fuzz_readers", __doc__, add_options, work)


if __name__ == "__main__":
    main()
