"""Kill stages (SIGKILL) at random moments, restart them and compare their results.

python tests/endurance/killed_stages.py --model exp/base --data_dir data/test_clean \\
    --config conf/decode/exact.yaml --table tests/endurance/checks.md

asr.sh formats utterances of a data directory (stage 3), and decodes and scores them (stages 12 and
13). It runs once undisturbed. Then it is killed at moments drawn from that duration; half of the
kills end all of its processes at once, the others end one process. If a run is completed before its
kill, its results are compared and removed. All files but logs and times must equal those of the
undisturbed run, byte for byte. Exit status 1: a file differs.
"""

import argparse
import random
import re
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import harness
import psutil

from espnet_medusa.data.command_line import positive
from espnet_medusa.data.kaldi.table import read_table

TIMED = re.compile(r"(statistics\.json|results\.json|RESULTS\.md)$")  # they contain seconds
PATIENCE_S = 120.0  # for a stage after the kill of one of its processes


@dataclass(frozen=True)
class Stages:
    name: str  # of the stages
    command: list[str]  # asr.sh with its options
    outputs: str  # folder of their results, in the recipe


def kill_some(process: subprocess.Popen, rng: random.Random) -> None:
    """Kill one process of a command, or all; wait and then kill the remaining ones."""
    tree = [psutil.Process(process.pid)]
    with suppress(psutil.NoSuchProcess):
        tree += tree[0].children(recursive=True)
    if rng.random() < 0.5:
        _kill(rng.choice(tree))
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=PATIENCE_S)
    for member in tree:
        _kill(member)
    process.wait()


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def finish(stages: Stages, recipe: Path) -> tuple[dict[str, bytes], float]:
    """Run the stages and return their files and the seconds; raise InputError if they fail."""
    started = time.monotonic()
    harness.run_to_end(stages.name, stages.command, recipe)
    return harness.contents(recipe / stages.outputs, TIMED), time.monotonic() - started


def disturbed(
    stages: Stages, recipe: Path, kills: int, longest_s: float, rng: random.Random
) -> list[dict[str, bytes]]:
    """Return the files of each completed run; runs are killed this many times in total."""
    completed = []
    while kills:
        with (recipe / "log").open("ab") as log:
            process = subprocess.Popen(
                stages.command, cwd=recipe, env=harness.environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            process.wait(timeout=rng.uniform(0, longest_s))
        except subprocess.TimeoutExpired:
            kill_some(process, rng)
            kills -= 1
            continue
        completed.append(harness.contents(recipe / stages.outputs, TIMED))
        shutil.rmtree(recipe / stages.outputs, ignore_errors=True)
    return [*completed, finish(stages, recipe)[0]]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="an experiment")
    parser.add_argument("--data_dir", type=Path, required=True, help="a Kaldi directory")
    parser.add_argument("--config", type=Path, required=True, help="of decoding (.yaml)")
    parser.add_argument("--utterances", type=positive, default=100)
    parser.add_argument("--kills", type=positive, default=20, help="half of them in stage 3")
    parser.add_argument("--seed", type=int, default=0)


def check(args: argparse.Namespace, folder: Path) -> tuple[str, str]:
    rng = random.Random(args.seed)
    config = ["--inference_config", str(args.config.resolve()), "--inference_nj", "2"]
    kinds = [
        Stages("stage 3", harness.decoding_command([3], "--nj", "2"), "dump"),
        Stages("stages 12, 13", harness.decoding_command([12, 13], *config), harness.RESULTS),
    ]
    recipes = [harness.make_recipe(folder / name, args.model) for name in ("whole", "killed")]
    tables = {name: read_table(args.data_dir / name) for name in harness.TABLES}
    for recipe in recipes:
        keys = islice(tables["wav.scp"], args.utterances)
        harness.write_tables(recipe / "data" / harness.TEST_SET, tables, keys)
    sentences, wrong = [], []
    for kind, kills in zip(kinds, (args.kills // 2, args.kills - args.kills // 2), strict=True):
        expected, seconds = finish(kind, recipes[0])
        runs = disturbed(kind, recipes[1], kills, seconds, rng)
        names = sorted({name for run in runs for name in harness.differing(run, expected)})
        wrong += names
        compared = sum(not TIMED.search(name) for name in expected)
        sentences.append(
            f"{kind.name}: {kills} runs killed, {len(runs)} completed, {compared} files: "
            f"{', '.join(names) or 'none'} differ"
        )
    return f"{args.utterances} utterances; {'; '.join(sentences)}", "no" if wrong else ""


main = harness.make_check("killed stages", __file__, __doc__, add_options, check)


if __name__ == "__main__":
    main()
