"""Fuzz each reader of untrusted files with a million inputs.

python tests/endurance/fuzz_readers.py --folder fuzzed --report tests/endurance/fuzz.md

Requires atheris, which searches for inputs that run new code (pip install atheris). A reader is a
function of tests/endurance/fuzz with seeds; it checks the result. The folder keeps inputs that ran
new code, the smallest of each defect with its traceback, and counts; the next run continues from
them. --keep copies the inputs into the repository; every run begins with them. A reader must refuse
an input by an InputError, a line per problem, or read it correctly. It may take a second of CPU
time and memory that the file's size justifies. Anything else is a defect. Exit status 1: a defect.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import harness  # noqa: F401  makes tests/support importable
from fuzz.reader import COMMITTED, CORPUS, COUNTS, DEFECTS, ENDS, IN_MEMORY, read_counts, zipped
from fuzz.readers import READERS

from espnet_medusa.data.command_line import make_main, positive
from espnet_medusa.data.errors import InputError
from espnet_medusa.recipes.report.markdown import markdown_table

HERE = Path(__file__).resolve().parent
LOG = "log"
MOST_ENDS = 3  # of a reader's process, before it is given up
NAMES = sorted(READERS)
QUIET = {
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}  # fmt: skip


def run_reader(name: str, folder: Path, executions: int) -> None:
    """Fuzz a reader up to this many inputs in all runs; raise InputError without atheris."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [HERE, HERE.parent / "support", *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | QUIET | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    ended = 0
    while (left := executions - read_counts(folder)[0]) > 0:
        command = [sys.executable, "-m", "fuzz.engine", name, str(folder), str(left)]
        with (
            tempfile.TemporaryDirectory(dir=IN_MEMORY) as scratch,
            (folder / LOG).open("ab") as log,
        ):
            environment["TMPDIR"] = scratch
            done = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False)
        ended += done.returncode != 0
        if ended > MOST_ENDS or executions - read_counts(folder)[0] == left:
            break
    if not (folder / COUNTS).is_file():
        last = (folder / LOG).read_text(errors="replace").strip().splitlines()[-1:]
        raise InputError(f"{name}: {' '.join(last)}; see {folder / LOG}, pip install atheris")


def read_defects(folder: Path) -> list[str]:
    ends = [f"ended: {path.name}" for path in sorted((folder / ENDS).glob("*"))]
    return [*(path.stem for path in sorted((folder / DEFECTS).glob("*.bin"))), *ends]


def report(folders: Sequence[Path]) -> str:
    header = ["reader", "executions", "inputs refused", "read right", "defects"]
    rows, lines = [], []
    for folder in folders:
        defects = read_defects(folder)
        figures = (*read_counts(folder), len(defects))
        rows.append([folder.name, *(f"{figure:,}" for figure in figures)])
        lines += [f"- {folder.name}: {defect}" for defect in defects]
    listed = "\n".join(["", "Defects:", "", *lines, ""]) if lines else ""
    return (
        "# Readers and hostile input\n\nWritten by `tests/endurance/fuzz_readers.py`. atheris "
        "generates inputs from a few small files. A reader must refuse each, in a line per "
        "problem, or read it correctly; any other outcome is a defect.\n\n"
        f"{markdown_table(header, rows, text_columns=1)}{listed}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--readers", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--executions", type=positive, default=1_000_000, help="of each reader")
    parser.add_argument("--folder", type=Path, required=True, help="kept between runs")
    parser.add_argument("--report", type=Path, help="page to write (.md)")
    parser.add_argument("--keep", action="store_true", help="copy inputs into fuzz/corpus")


def work(args: argparse.Namespace) -> int:
    for name in args.readers:
        folder = args.folder / name
        run_reader(name, folder, args.executions)
        print(f"{name}: {', '.join(read_defects(folder)) or 'no defects'}", flush=True)
        if args.keep:
            inputs = {file.name: file.read_bytes() for file in sorted((folder / CORPUS).iterdir())}
            (COMMITTED / f"{name}.zip").write_bytes(zipped(inputs, zipfile.ZIP_DEFLATED))
    folders = [args.folder / name for name in NAMES if (args.folder / name / COUNTS).is_file()]
    text = report(folders)
    print(text)
    if args.report is not None:
        args.report.write_text(text, encoding="utf-8")
    return int(any(map(read_defects, folders)))


main = make_main("fuzz_readers", __doc__, add_options, work)


if __name__ == "__main__":
    main()
