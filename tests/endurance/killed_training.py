"""Training whose processes are killed: its losses and weights are those of an undisturbed one.

python tests/endurance/killed_training.py --kills 10

Speaks a corpus and trains the base model of egs/mini_synth on it, by stage 11 of asr.sh in two
processes that average their gradients: left alone, then with --max_restarts. Here one of the two is
killed (-9) again and again: as it starts, in an epoch, while an epoch's end is written. Gradients
are left over at the end of each epoch (--accum_grad). Exit status 1: a loss or a weight differs, or
training ended before the last kill.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from harness.checks_table import CheckRow, finish_check

from espnet_medusa.bin.command_line import make_main, positive
from espnet_medusa.errors import InputError
from espnet_medusa.recipe.jobs import stop, tail
from espnet_medusa.recipe.progress import LogFollower
from espnet_medusa.training.trainer import BEFORE, CHECKPOINT, GRADIENTS

RECIPE = Path(__file__).resolve().parents[2] / "egs" / "mini_synth" / "asr1"
MODULE = "espnet_medusa.bin.asr_train"
START, EPOCH, WRITING = "as it started", "in an epoch", "while an epoch's end was written"
STARTING_S, WRITING_S, LOOK_S = 5.0, 0.05, 0.002
Losses = dict[tuple[int, str], float]


@dataclass
class Killer:
    """Kills one of two training processes, whenever two new ones are there."""

    experiment: Path  # their folder
    run: subprocess.Popen  # what started them, through others
    epoch_s: float  # seconds of an epoch
    choose: random.Random  # random numbers
    # When each process was killed, of ``START``, ``EPOCH``, ``WRITING``.
    kills: list[str] = field(default_factory=list)
    _known: set[int] = field(default_factory=set)

    def kill(self) -> bool:
        """Wait for new processes and kill one; False: training ended before."""
        moment = (START, WRITING, EPOCH, WRITING)[len(self.kills) % 4]
        if not self._wait(lambda: len(self._new()) == 2):
            return False
        victims = self._new()
        self._known.update(process.pid for process in victims)
        if not self._wait(self._reached(moment)):
            return False
        latest_s = {START: STARTING_S, EPOCH: self.epoch_s, WRITING: WRITING_S}[moment]
        time.sleep(self.choose.uniform(0.0, latest_s))
        if moment == WRITING and not (self.experiment / BEFORE).exists():
            moment = EPOCH  # too late: the next one has begun
        try:
            self.choose.choice(victims).kill()
        except psutil.NoSuchProcess:
            return False
        self.kills.append(moment)
        return True

    def _reached(self, moment: str) -> Callable[[], bool]:
        """Whether it is the first or the second epoch since the start, and this moment of it."""
        log = LogFollower(self.experiment / "train.log", from_end=True)
        begun, epochs = [], self.choose.choice((1, 2))

        def reached() -> bool:
            begun.extend(line for line in log.new_lines() if "epoch started" in line)
            writes = all((self.experiment / name).exists() for name in (BEFORE, CHECKPOINT))
            return len(begun) >= epochs and (moment == EPOCH or writes)

        return (lambda: True) if moment == START else reached

    def _wait(self, until: Callable[[], bool]) -> bool:
        while self.run.poll() is None:
            if until():
                return True
            time.sleep(LOOK_S)
        return False

    def _new(self) -> list[psutil.Process]:
        """Training processes since the last kill."""
        processes = [process for process in _children(self.run.pid) if _is_training(process)]
        return [process for process in processes if process.pid not in self._known]


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_training(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[1:3] == ["-m", MODULE]
    except psutil.Error:
        return False


def prepare(folder: Path, minutes: float) -> None:
    """Speak the corpus: data directories in ``folder/data``."""
    command = ["local/make_corpus.py", "--output_dir", folder / "data", "--audio_dir", folder]
    command += ["--minutes", minutes, "--dev_utterances", 24, "--test_utterances", 1]
    subprocess.run([sys.executable, *map(str, command)], cwd=RECIPE, check=True)


@contextmanager
def training(folder: Path, args: argparse.Namespace, *options: str) -> Iterator[subprocess.Popen]:
    """asr.sh on this corpus, in two processes; at the end it is over."""
    configuration = f"--max_epoch {args.epochs} --accum_grad {args.accum_grad} --batch_size 8"
    configuration += " --scheduler_conf max_steps=200 --log_interval 5"
    command = [
        "./asr.sh", "--data_dir", folder / "data", "--train_set", "train", "--valid_set", "dev",
        "--skip_eval", "true", "--dumpdir", folder / "dump", "--expdir", folder / "exp",
        "--asr_stats_dir", folder / "stats", "--feats_normalize", "", "--token_type", "char",
        "--max_wav_duration", "30", "--ngpu", "0", "--nj", "2", "--train_nj", "2",
        "--asr_config", "conf/train_base.yaml", "--asr_args", configuration, *options,
    ]  # fmt: skip
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run = subprocess.Popen(
        list(map(str, command)),
        cwd=RECIPE,
        env={**os.environ, "PATH": paths},
        start_new_session=True,
    )
    try:
        yield run
    finally:
        stop([run])


def finish(run: subprocess.Popen, log: Path) -> None:
    """Wait for it.

    Raises:
        InputError: It failed.
    """
    if run.wait():
        raise InputError(f"asr.sh ended with status {run.returncode}:\n{tail(log)}")


def read_losses(experiment: Path) -> Losses:
    """Of each epoch, in training and validation."""
    checkpoint = torch.load(experiment / CHECKPOINT, weights_only=False)
    epochs = checkpoint["reporter"]["stats"].items()
    return {
        (epoch, part): stats[part]["loss"] for epoch, stats in epochs for part in ("train", "valid")
    }


def epoch_seconds(experiment: Path) -> float:
    """Of the longest epoch's training."""
    checkpoint = torch.load(experiment / CHECKPOINT, weights_only=False)
    epochs = checkpoint["reporter"]["stats"].values()
    return max(stats["train"]["time"].total_seconds() for stats in epochs)


def differing(one: Path, other: Path) -> tuple[list[str], int]:
    """Files and tensors that two experiments do not share, and how many tensors were compared."""
    names = {path.name for folder in (one, other) for path in folder.glob("*.pth")} - {CHECKPOINT}
    found, compared = [], 0
    for name in sorted(names):
        if not ((one / name).is_file() and (other / name).is_file()):
            found.append(name)
            continue
        first, second = (torch.load(folder / name, weights_only=True) for folder in (one, other))
        compared += len(first)
        if first.keys() != second.keys():
            found.append(name)
            continue
        found += [f"{name}:{key}" for key in first if not torch.equal(first[key], second[key])]
    return found, compared


def leaves_gradients(experiment: Path) -> bool:
    """Return whether accumulated gradients remain after the last epoch."""
    checkpoint = torch.load(experiment / CHECKPOINT, weights_only=False)
    return GRADIENTS in checkpoint["optimizers"][0]


def describe(kills: Sequence[str], losses: Losses, log: str) -> str:
    """Return the result in one sentence."""
    counts = Counter(kills)
    when = ", ".join(f"{counts[moment]} {moment}" for moment in (START, EPOCH, WRITING))
    last = max(epoch for epoch, _ in losses)
    first_loss, last_loss = losses[1, "train"], losses[last, "train"]
    begun = log.count("epoch started")
    return (
        f"{last} epochs, training loss {first_loss:.2f} to {last_loss:.2f}; one of two processes "
        f"was killed {len(kills)} times: {when}; epochs were begun {begun} times"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The script's options."""
    parser.add_argument("--kills", type=positive, default=10)
    parser.add_argument("--epochs", type=positive, default=8)
    parser.add_argument("--accum_grad", type=positive, default=4)
    parser.add_argument("--minutes", type=float, default=6.0, help="of speech")
    parser.add_argument("--seed", type=int, default=0, help="of the kills' moments")
    parser.add_argument("--folder", type=Path, help="to work in; default: a temporary one")
    parser.add_argument(
        "--table", type=Path, default=Path(__file__).with_name("checks.md"), help="gets a row"
    )


def check(folder: Path, args: argparse.Namespace) -> tuple[str, list[str]]:
    """Train twice; what was seen, and what is wrong.

    Raises:
        InputError: A run failed, or leaves no gradients over.
    """
    prepare(folder, args.minutes)
    alone, killed = (folder / "exp" / f"asr_{name}" for name in ("alone", "killed"))
    with training(folder, args, "--stop_stage", "11", "--asr_tag", "alone") as run:
        finish(run, alone / "train.log")
    if not leaves_gradients(alone):
        raise InputError(f"--accum_grad {args.accum_grad} divides an epoch's batches; give another")
    again = ("--stage", "11", "--asr_tag", "killed", "--max_restarts", str(args.kills))
    with training(folder, args, *again) as run:
        killer = Killer(killed, run, epoch_seconds(alone), random.Random(args.seed))
        while len(killer.kills) < args.kills and killer.kill():
            print(f"killed {len(killer.kills)}: {killer.kills[-1]}", flush=True)
        finish(run, killed / "train.log")
    expected, found = read_losses(alone), read_losses(killed)
    wrong = [f"loss {name}" for name, loss in expected.items() if found.get(name) != loss]
    files, compared = differing(alone, killed)
    wrong += files
    if len(killer.kills) < args.kills:
        wrong.append(f"training ended before kill {len(killer.kills) + 1}; give more --epochs")
    seen = describe(killer.kills, found, (killed / "train.log").read_text(encoding="utf-8"))
    same = f"; {len(expected)} losses and {compared} tensors compared bit by bit"
    return seen + same, wrong


def work(args: argparse.Namespace) -> int:
    """Train, compare and write; the exit status."""
    with tempfile.TemporaryDirectory() as name:
        seen, wrong = check(args.folder or Path(name), args)
    right = "yes" if not wrong else f"{len(wrong)} differ: {', '.join(wrong[:3])}"
    options = f"--kills {args.kills} --epochs {args.epochs} --accum_grad {args.accum_grad}"
    command = f"killed_training.py {options} --minutes {args.minutes:g} --seed {args.seed}"
    return finish_check(CheckRow("training killed", seen, right, command), args.table)


main = make_main("killed_training", __doc__, add_options, work)


if __name__ == "__main__":
    main()
