"""A temporary recipe, decoded by the stages of asr.sh."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from espnet_medusa.errors import InputError
from espnet_medusa.inference.experiment import find_weights

TEMPLATE = Path(__file__).resolve().parents[3] / "egs" / "TEMPLATE" / "asr1"
SCRIPTS = ("asr.sh", "path.sh", "cmd.sh")
TEST_SET, EXPERIMENT = "test", "exp/asr"


def make_recipe(folder: Path, model: Path | None = None) -> Path:
    """Create a recipe folder with links to asr.sh and to an experiment's config and weights."""
    folder.mkdir(parents=True)
    for name in SCRIPTS:
        (folder / name).symlink_to(TEMPLATE / name)
    if model is not None:
        experiment = folder / EXPERIMENT
        experiment.mkdir(parents=True)
        (experiment / "config.yaml").symlink_to(model.resolve() / "config.yaml")
        (experiment / "model.pth").symlink_to(Path(find_weights(model, "model")).resolve())
    return folder


def decoding_command(stages: Iterable[int], *options: str) -> list[str]:
    """Return the command that formats, decodes and scores the test set."""
    first, *_, last = [*stages] * 2
    return [
        *("./asr.sh", "--data_dir", "data", "--test_sets", TEST_SET, "--skip_train", "true"),
        *("--asr_exp", EXPERIMENT, "--inference_asr_model", "model.pth", "--ngpu", "0"),
        *("--inference_tag", "decoded", "--stage", str(first), "--stop_stage", str(last)),
        *options,
    ]


def results_folder(recipe: Path) -> Path:
    """Return the folder that decoding writes its results to."""
    return recipe / EXPERIMENT / "decoded" / TEST_SET


def environment() -> dict[str, str]:
    """Return variables with which ``python3`` of a recipe is this Python."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder and return its output and exit status."""
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, errors="replace",
        check=False,
    )  # fmt: skip


def run_to_end(name: str, command: list[str], folder: Path) -> None:
    """Run a command that must succeed.

    Raises:
        InputError: It failed.
    """
    done = run(command, folder)
    if done.returncode:
        raise InputError(f"{name}: {(done.stderr.strip().splitlines() or [''])[-1]}")
