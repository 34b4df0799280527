"""Kill stages (SIGKILL) at random moments, restart them and compare their results.

python tests/endurance/killed_stages.py --model exp/base --data_dir data/test_clean \\
    --config conf/decode/exact.yaml --table tests/endurance/checks.md

asr.sh formats utterances of a data directory (stage 3), and decodes and scores them (stages 12 and
13): once undisturbed, then killed at moments drawn from as long as that took, half of the kills all
of its processes at once, the others one of them. A run that comes to its end is compared, and its
results are removed: the next begins anew. All files but logs and times must be those of the
undisturbed run, byte for byte. Exit status 1: one is not.
"""

import argparse
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil
from harness.checks_table import CheckRow, finish_check
from harness.recipe_run import (
    TEST_SET,
    decoding_command,
    environment,
    make_recipe,
    results_folder,
    run_to_end,
)

from espnet_medusa.bin.command_line import make_main, positive
from espnet_medusa.kaldi.table import read_table, write_table

TABLES = ("wav.scp", "text", "utt2spk")
TIMED = ("statistics.json", "results.json", "RESULTS.md")  # they hold seconds
LOGS = "logdir"
PATIENCE_S = 120.0  # for a stage one of whose processes is gone


@dataclass(frozen=True)
class Stages:
    """Stages that are killed."""

    name: str  # of them
    command: list[str]  # asr.sh with its options
    outputs: Callable[[Path], Path]  # folder of their results, in the recipe


def contents(folder: Path) -> dict[str, bytes]:
    """Files but logs and those that hold times, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and LOGS not in path.parts and path.name not in TIMED
    }


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """Return the names of files that differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def kill_some(process: subprocess.Popen, rng: random.Random) -> None:
    """Kill one process of a command, or all; wait and then kill the remaining ones."""
    tree = [psutil.Process(process.pid)]
    with suppress(psutil.NoSuchProcess):
        tree += tree[0].children(recursive=True)
    if rng.random() < 0.5:
        _kill(rng.choice(tree))
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=PATIENCE_S)
    for one in tree:
        _kill(one)
    process.wait()


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def finish(stages: Stages, recipe: Path) -> float:
    """Run the stages and return the seconds.

    Raises:
        InputError: They failed.
    """
    started = time.monotonic()
    run_to_end(stages.name, stages.command, recipe)
    return time.monotonic() - started


def disturbed(
    stages: Stages, recipe: Path, kills: int, longest_s: float, rng: random.Random
) -> list[dict[str, bytes]]:
    """Return the files of each completed run; runs are killed this many times in total."""
    left, log = [], recipe / "log"
    while kills:
        with log.open("ab") as stream:
            process = subprocess.Popen(
                stages.command,
                cwd=recipe,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        try:
            process.wait(timeout=rng.uniform(0, longest_s))
        except subprocess.TimeoutExpired:
            kill_some(process, rng)
            kills -= 1
            continue
        left.append(contents(stages.outputs(recipe)))
        shutil.rmtree(stages.outputs(recipe), ignore_errors=True)
    finish(stages, recipe)
    return [*left, contents(stages.outputs(recipe))]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's options."""
    parser.add_argument("--model", type=Path, required=True, help="an experiment")
    parser.add_argument("--data_dir", type=Path, required=True, help="a Kaldi directory")
    parser.add_argument("--config", type=Path, required=True, help="of decoding (.yaml)")
    parser.add_argument("--utterances", type=positive, default=100)
    parser.add_argument("--kills", type=positive, default=20, help="half of them in stage 3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", type=Path, help="gets a row (.md)")


def copy_data(data_dir: Path, count: int, folder: Path) -> None:
    """The first utterances of a data directory."""
    for name in TABLES:
        entries = read_table(data_dir / name)
        write_table(folder / name, dict(islice(entries.items(), count)))


def check(args: argparse.Namespace, folder: Path) -> tuple[str, bool]:
    """Return the result in one sentence, and whether it is right."""
    rng = random.Random(args.seed)
    config = ["--inference_config", str(args.config.resolve()), "--inference_nj", "2"]
    kinds = [
        Stages("stage 3", decoding_command([3], "--nj", "2"), lambda one: one / "dump"),
        Stages("stages 12, 13", decoding_command([12, 13], *config), results_folder),
    ]
    recipes = [make_recipe(folder / name, args.model) for name in ("whole", "killed")]
    for recipe in recipes:
        copy_data(args.data_dir, args.utterances, recipe / "data" / TEST_SET)
    told, wrong = [], []
    for kind, kills in zip(kinds, (args.kills // 2, args.kills - args.kills // 2), strict=True):
        took = finish(kind, recipes[0])
        expected = contents(kind.outputs(recipes[0]))
        left = disturbed(kind, recipes[1], kills, took, rng)
        names = {name for one in left for name in differing(one, expected)}
        wrong += sorted(names)
        told.append(
            f"{kind.name}: {kills} kills, {len(left)} runs came to their end, {len(expected)} "
            f"files: {', '.join(sorted(names)) or 'none'} differ"
        )
    return f"{args.utterances} utterances; {'; '.join(told)}", not wrong


def work(args: argparse.Namespace) -> int:
    """Kill and compare; the exit status."""
    with tempfile.TemporaryDirectory() as name:
        found, right = check(args, Path(name))
    command = f"killed_stages.py --utterances {args.utterances} --kills {args.kills}"
    command += f" --seed {args.seed}"
    row = CheckRow("killed stages", found, "yes" if right else "no", command)
    return finish_check(row, args.table)


main = make_main("killed_stages", __doc__, add_options, work)


if __name__ == "__main__":
    main()
