"""Shared code of the full-size checks: their table, random cases, and recipes of asr.sh."""

import argparse
import logging
import os
import platform
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

import torch

from espnet_medusa.data.command_line import AddOptions, make_main, positive
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import write_table
from espnet_medusa.data.processor_name import processor_name
from espnet_medusa.inference.experiment import find_weights
from espnet_medusa.recipes.report.markdown import markdown_table

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "support"))  # for modules imported after this one

MINI_SYNTH = ROOT / "egs" / "mini_synth" / "asr1"
TEST_SET, EXPERIMENT = "test", "exp/asr"
RESULTS = f"{EXPERIMENT}/decoded/{TEST_SET}"  # folder in the recipe that decoding writes to
TABLES = ("wav.scp", "text", "utt2spk")

EQUAL, EQUAL_FALLING, DIFFERS = "equal", "equal if CTC scores only fall", "mismatch"
EQUAL_DOUBLE = "equal in float64"
TITLES = ("check", "found", "right", "command", "machine")
HEADING = "# Full-size checks\n\nEach command of `tests/endurance` writes its own row.\n\n"


def this_machine() -> str:
    processor = processor_name(torch.device("cpu"))
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}"


@dataclass(frozen=True)
class CheckRow:
    check: str  # name of the row: a few words
    found: str  # figures, in one sentence
    right: str  # ``yes``, or what is wrong
    command: str  # the command line, relative to ``tests/endurance``
    machine: str = field(default_factory=this_machine)  # where it ran


def finish_check(row: CheckRow, table: Path | None) -> int:
    print(f"{row.found}\nright: {row.right}")
    if table is not None:
        write_row(table, row)
    return int(row.right != "yes")


def write_row(path: Path, row: CheckRow) -> None:
    """Replace the row of the same name, sort rows; raise InputError for another table."""
    rows = {old.check: old for old in read_rows(path)} | {row.check: row}
    cells = [astuple(rows[name]) for name in sorted(rows)]
    path.write_text(HEADING + markdown_table(TITLES, cells), encoding="utf-8")


def read_rows(path: Path) -> Sequence[CheckRow]:
    """Return a table's rows, none without a file; raise InputError if it has another table."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").removeprefix(HEADING).splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    if len(rows) < 2 or tuple(rows[0]) != TITLES or any(len(row) != len(TITLES) for row in rows):
        raise InputError(f"{path}: not a table of checks; give another --table")
    return [CheckRow(*(cell.replace("\\|", "|") for cell in row)) for row in rows[2:]]


def make_check(
    title: str,
    file: str,
    description: str,
    add_options: AddOptions,
    check: Callable[[argparse.Namespace, Path], tuple[str, str]],
) -> Callable[[Sequence[str] | None], None]:
    """Make the ``main`` of a check, which writes its row with the values of all numeric options.

    ``check`` gets the options and a temporary folder, and returns figures and what is wrong.
    """
    script = Path(file)

    def add_all_options(parser: argparse.ArgumentParser) -> None:
        add_options(parser)
        parser.add_argument("--table", type=Path, help="table that gets a row (.md)")

    def work(args: argparse.Namespace) -> int:
        with tempfile.TemporaryDirectory() as folder:
            found, wrong = check(args, Path(folder).resolve())
        words = [script.name]
        for name, value in vars(args).items():
            values = value if isinstance(value, list) else [value]
            if all(isinstance(number, int | float) for number in values):
                words += [f"--{name}", *(f"{number:g}" for number in values)]
        return finish_check(CheckRow(title, found, wrong or "yes", " ".join(words)), args.table)

    return make_main(script.stem, description, add_all_options, work)


def make_random_check(
    title: str,
    file: str,
    description: str,
    cases: int,
    outcomes_of: Callable[[int, Path], Iterable[str]],
    describe: Callable[[Counter[str], range], str],
) -> Callable[[Sequence[str] | None], None]:
    """Make the ``main`` of a check of random cases, by default of this many.

    ``outcomes_of`` a seed, with a temporary folder, returns the outcomes of its cases; none may be
    ``DIFFERS``. ``describe`` returns figures from the counts of outcomes and the seeds.
    """

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--cases", type=positive, default=cases)
        parser.add_argument("--seed", type=int, default=0, help="the first; others follow")

    def check(args: argparse.Namespace, folder: Path) -> tuple[str, str]:
        torch.set_num_threads(1)
        outcomes, seed, disabled = Counter(), args.seed, logging.root.manager.disable
        logging.disable(logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while outcomes.total() < args.cases:
                found = Counter(outcomes_of(seed, folder / str(seed)))
                outcomes += found
                if found[DIFFERS]:
                    print(f"seed {seed}: {found[DIFFERS]} mismatches", flush=True)
                seed += 1
                if seed % 100 == 0:
                    print(f"{outcomes.total()} cases", flush=True)
        logging.disable(disabled)
        return describe(outcomes, range(args.seed, seed)), "no" if outcomes[DIFFERS] else ""

    return make_check(title, file, description, add_options, check)


def make_recipe(folder: Path, model: Path | None = None) -> Path:
    """Create a recipe folder with links to asr.sh and to an experiment's config and weights."""
    from recipes import link_template

    link_template(folder)
    if model is not None:
        experiment = folder / EXPERIMENT
        experiment.mkdir(parents=True)
        (experiment / "config.yaml").symlink_to(model.resolve() / "config.yaml")
        (experiment / "model.pth").symlink_to(Path(find_weights(model, "model")).resolve())
    return folder


def write_tables(folder: Path, tables: dict[str, dict[str, str]], keys: Iterable[str]) -> None:
    keys = [*keys]
    for name, entries in tables.items():
        write_table(folder / name, {key: entries[key] for key in keys})


def decoding_command(stages: Iterable[int], *options: str) -> list[str]:
    first, *_, last = [*stages] * 2
    return [
        *("./asr.sh", "--data_dir", "data", "--test_sets", TEST_SET, "--skip_train", "true"),
        *("--asr_exp", EXPERIMENT, "--inference_asr_model", "model.pth", "--ngpu", "0"),
        *("--inference_tag", "decoded", "--stage", str(first), "--stop_stage", str(last)),
        *options,
    ]


def environment() -> dict[str, str]:
    """Return variables with which ``python3`` of a recipe is this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, errors="replace",
        check=False,
    )  # fmt: skip


def run_to_end(name: str, command: list[str], folder: Path) -> None:
    done = run(command, folder)
    if done.returncode:
        raise InputError(f"{name}: {(done.stderr.strip().splitlines() or [''])[-1]}")


def contents(folder: Path, volatile: re.Pattern[str]) -> dict[str, bytes]:
    """Return files outside of log folders by path; without bytes where the path matches."""
    return {
        name: b"" if volatile.search(name) else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "logdir" not in (name := str(path.relative_to(folder)))
    }


def differing(one: dict, other: dict) -> list[str]:
    """Return the keys whose values differ or that only one has."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
