"""A recipe of a check's own: data directories in a folder, decoded by the stages of asr.sh."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from espnet_medusa.inference.experiment import find_weights

TEMPLATE = Path(__file__).resolve().parents[2] / "egs" / "TEMPLATE" / "asr1"
SCRIPTS = ("asr.sh", "path.sh", "cmd.sh")
TEST_SET, EXPERIMENT = "test", "exp/asr"
LINKED = ("tokens.txt", "tokenizer", "source")


def make_recipe(folder: Path, model: Path | None = None) -> Path:
    """A folder with asr.sh and, where a model is given, that experiment as its own.

    Args:
        folder: Is made.
        model: An experiment's folder, of which links are made; config and weights among them.
    """
    folder.mkdir(parents=True)
    for name in SCRIPTS:
        (folder / name).symlink_to(TEMPLATE / name)
    if model is not None:
        experiment = folder / EXPERIMENT
        experiment.mkdir(parents=True)
        (experiment / "config.yaml").symlink_to(model.resolve() / "config.yaml")
        (experiment / "model.pth").symlink_to(Path(find_weights(model, "model")).resolve())
    return folder


def environment() -> dict[str, str]:
    """Of a recipe: its python3 is this one."""
    places = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**os.environ, "PATH": os.pathsep.join(places)}


def decoding_command(stages: Iterable[int], *options: str) -> list[str]:
    """The words that format, decode and score the recipe's test set by its experiment."""
    first, *_, last = [*stages] * 2
    return [
        *("./asr.sh", "--data_dir", "data", "--test_sets", TEST_SET, "--skip_train", "true"),
        *("--asr_exp", EXPERIMENT, "--inference_asr_model", "model.pth", "--ngpu", "0"),
        *("--inference_tag", "decoded", "--stage", str(first), "--stop_stage", str(last)),
        *options,
    ]


def results_folder(recipe: Path) -> Path:
    """Where that command leaves results."""
    return recipe / EXPERIMENT / "decoded" / TEST_SET


def run(
    command: list[str], folder: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, to its end."""
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, errors="replace", check=False
    )
