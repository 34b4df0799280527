"""Kill training processes again and again; compare losses and weights with an undisturbed run.

python tests/endurance/killed_training.py --kills 10 --table tests/endurance/checks.md

Synthesizes a corpus and trains the base model of egs/mini_synth on it, by stage 11 of asr.sh in two
processes that average their gradients: first undisturbed, then with --max_restarts. In the second
run one of the processes is killed (SIGKILL) as it starts, in an epoch, or while an epoch's end is
written. --accum_grad must leave gradients over at the end of each epoch. Exit status 1: a loss or a
weight differs, or training ended before the last kill.
"""

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import harness
import psutil
import torch

from espnet_medusa.data.command_line import positive
from espnet_medusa.data.errors import InputError
from espnet_medusa.espnet.training.trainer import BEFORE, CHECKPOINT, GRADIENTS
from espnet_medusa.recipes.jobs import stop
from espnet_medusa.recipes.log_progress import LogFollower

START, EPOCH, WRITING = "as it started", "in an epoch", "while an epoch's end was written"
STARTING_S, WRITING_S, POLL_S = 5.0, 0.05, 0.002
Losses = dict[tuple[int, str], float]


@dataclass
class Killer:
    """Kills one of two training processes each time that two new ones run."""

    experiment: Path  # their folder
    run: subprocess.Popen  # the command whose descendants they are
    epoch_s: float  # seconds of an epoch
    rng: random.Random
    # When each process was killed, of ``START``, ``EPOCH``, ``WRITING``.
    kills: list[str] = field(default_factory=list)
    _known: set[int] = field(default_factory=set)

    def kill(self) -> bool:
        """Wait for new processes and kill one; return False if training ended before."""
        moment = (START, WRITING, EPOCH, WRITING)[len(self.kills) % 4]
        if not self._wait(lambda: len(self._new()) == 2):
            return False
        victims = self._new()
        self._known.update(process.pid for process in victims)
        if not self._wait(self._reached(moment)):
            return False
        latest_s = {START: STARTING_S, EPOCH: self.epoch_s, WRITING: WRITING_S}[moment]
        time.sleep(self.rng.uniform(0.0, latest_s))
        if moment == WRITING and not (self.experiment / BEFORE).exists():
            moment = EPOCH  # too late: the next one has begun
        try:
            self.rng.choice(victims).kill()
        except psutil.NoSuchProcess:
            return False
        self.kills.append(moment)
        return True

    def _reached(self, moment: str) -> Callable[[], bool]:
        """Return a check that the first or second epoch since the start has reached this moment."""
        log = LogFollower(self.experiment / "train.log", from_end=True)
        begun, epochs = [], self.rng.choice((1, 2))

        def reached() -> bool:
            begun.extend(line for line in log.new_lines() if "epoch started" in line)
            writes = all((self.experiment / name).exists() for name in (BEFORE, CHECKPOINT))
            return len(begun) >= epochs and (moment == EPOCH or writes)

        return (lambda: True) if moment == START else reached

    def _wait(self, until: Callable[[], bool]) -> bool:
        while self.run.poll() is None:
            if until():
                return True
            time.sleep(POLL_S)
        return False

    def _new(self) -> list[psutil.Process]:
        try:
            processes = psutil.Process(self.run.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [p for p in processes if p.pid not in self._known and _is_training(p)]


def _is_training(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[1:3] == ["-m", "espnet_medusa.bin.asr_train"]
    except psutil.Error:
        return False


def prepare(folder: Path, minutes: float) -> None:
    command = ["local/make_corpus.py", "--output_dir", folder / "data", "--audio_dir", folder]
    command += ["--minutes", minutes, "--dev_utterances", 24, "--test_utterances", 1]
    subprocess.run([sys.executable, *map(str, command)], cwd=harness.MINI_SYNTH, check=True)


@contextmanager
def training(
    folder: Path, args: argparse.Namespace, tag: str, *options: str
) -> Iterator[subprocess.Popen]:
    """Train with asr.sh in two processes; wait after the block; raise InputError if it fails."""
    configuration = f"--max_epoch {args.epochs} --accum_grad {args.accum_grad} --batch_size 8"
    configuration += " --scheduler_conf max_steps=200 --log_interval 5"
    command = [
        "./asr.sh", "--data_dir", folder / "data", "--train_set", "train", "--valid_set", "dev",
        "--skip_eval", "true", "--dumpdir", folder / "dump", "--expdir", folder / "exp",
        "--asr_stats_dir", folder / "stats", "--feats_normalize", "", "--token_type", "char",
        "--max_wav_duration", "30", "--ngpu", "0", "--nj", "2", "--train_nj", "2", "--asr_tag", tag,
        "--asr_config", "conf/train_base.yaml", "--asr_args", configuration, *options,
    ]  # fmt: skip
    places = {"cwd": harness.MINI_SYNTH, "env": harness.environment()}
    run = subprocess.Popen([*map(str, command)], **places, start_new_session=True)
    try:
        yield run
        if run.wait():
            log = folder / "exp" / f"asr_{tag}" / "train.log"
            raise InputError(f"asr.sh ended with status {run.returncode}; see {log}")
    finally:
        stop([run])


def read_checkpoint(experiment: Path) -> dict:
    return torch.load(experiment / CHECKPOINT, weights_only=False)


def read_losses(experiment: Path) -> Losses:
    epochs, parts = read_checkpoint(experiment)["reporter"]["stats"].items(), ("train", "valid")
    return {(epoch, part): stats[part]["loss"] for epoch, stats in epochs for part in parts}


def read_tensors(experiment: Path) -> dict[str, bytes]:
    paths = [path for path in experiment.glob("*.pth") if path.name != CHECKPOINT]
    return {
        f"{path.name}:{name}": value.numpy().tobytes()
        for path in paths
        for name, value in torch.load(path, weights_only=True).items()
    }


def leaves_gradients(experiment: Path) -> bool:
    return GRADIENTS in read_checkpoint(experiment)["optimizers"][0]


def describe(kills: Sequence[str], losses: Losses, log: str) -> str:
    counts = Counter(kills)
    when = ", ".join(f"{counts[moment]} {moment}" for moment in (START, EPOCH, WRITING))
    last = max(epoch for epoch, _ in losses)
    return (
        f"{last} epochs, training loss {losses[1, 'train']:.2f} to {losses[last, 'train']:.2f}; "
        f"one of two processes was killed {len(kills)} times: {when}; epochs started "
        f"{log.count('epoch started')} times"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=positive, default=10)
    parser.add_argument("--epochs", type=positive, default=8)
    parser.add_argument("--accum_grad", type=positive, default=4)
    parser.add_argument("--minutes", type=float, default=6.0, help="of speech")
    parser.add_argument("--seed", type=int, default=0, help="of the kills' moments")


def check(args: argparse.Namespace, folder: Path) -> tuple[str, str]:
    prepare(folder, args.minutes)
    alone, killed = (folder / "exp" / f"asr_{name}" for name in ("alone", "killed"))
    with training(folder, args, "alone", "--stop_stage", "11"):
        pass
    if not leaves_gradients(alone):
        raise InputError(f"--accum_grad {args.accum_grad} divides an epoch's batches; give another")
    epochs = read_checkpoint(alone)["reporter"]["stats"].values()
    epoch_s = max(stats["train"]["time"].total_seconds() for stats in epochs)
    again = ("--stage", "11", "--max_restarts", str(args.kills))
    with training(folder, args, "killed", *again) as run:
        killer = Killer(killed, run, epoch_s, random.Random(args.seed))
        while len(killer.kills) < args.kills and killer.kill():
            print(f"killed {len(killer.kills)}: {killer.kills[-1]}", flush=True)
    expected, losses = read_losses(alone), read_losses(killed)
    tensors = read_tensors(alone)
    wrong = [f"loss {name}" for name in harness.differing(expected, losses)]
    wrong += harness.differing(tensors, read_tensors(killed))
    if len(killer.kills) < args.kills:
        wrong.append(f"training ended before kill {len(killer.kills) + 1}; give more --epochs")
    figures = describe(killer.kills, losses, (killed / "train.log").read_text(encoding="utf-8"))
    figures += f"; {len(expected)} losses and {len(tensors)} tensors compared bit by bit"
    return figures, f"{len(wrong)} differ: {', '.join(wrong[:3])}" if wrong else ""


main = harness.make_check("training killed", __file__, __doc__, add_options, check)


if __name__ == "__main__":
    main()
