"""Copies of the repository's recipes in temporary folders, and a fake asr.sh that records calls."""

import subprocess
from pathlib import Path
from typing import Any

import warm_python
import yaml
from waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "egs" / "TEMPLATE" / "asr1"
GENERATED = ("data", "downloads", "dump", "exp")
FAKE_ASR = """\
#!/usr/bin/env bash
printf '%s\\037' "$@" >> calls
printf '\\036' >> calls
"""


def link_recipe(root: Path, recipe: str, without: tuple[str, ...] = ()) -> Path:
    """Make `root/egs/<recipe>` and link the recipe's files and folders into it.

    Args:
        recipe: Such as ``mini_synth/asr1``.
        without: Names of files and folders that are not linked; for ``conf``, an empty one is made.

    Returns:
        The new folder.
    """
    folder = root / "egs" / recipe
    folder.mkdir(parents=True)
    (root / "egs" / "TEMPLATE").symlink_to(ROOT / "egs" / "TEMPLATE")
    for source in (ROOT / "egs" / recipe).iterdir():
        if source.name not in (*GENERATED, *without):
            (folder / source.name).symlink_to(source.resolve())
    if "conf" in without:
        (folder / "conf" / "decode").mkdir(parents=True)
    return folder


def link_template(folder: Path, *more: str) -> Path:
    """Link asr.sh, and what it needs, into a folder, which is made; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("asr.sh", "path.sh", "cmd.sh", *more):
        (folder / name).symlink_to(TEMPLATE / name)
    return folder


def write_script(path: Path, text: str) -> None:
    """Write an executable file."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def copy_config(source: Path, target: Path, **changes: Any) -> None:
    """Write a YAML config with changed values to a folder; dictionaries are merged."""
    config = yaml.safe_load(source.read_text())
    for name, value in changes.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    (target / source.name).write_text(yaml.safe_dump(config))


def run(folder: Path, script: str, *options: object) -> subprocess.CompletedProcess:
    """Run a script of a recipe."""
    return subprocess.run(
        [script, *map(str, options)], cwd=folder, text=True, capture_output=True, timeout=HANG_S,
        env=warm_python.environment(),
    )  # fmt: skip


def record_asr(folder: Path) -> None:
    """Replace a recipe's asr.sh by a script that only records its options."""
    script = folder / "asr.sh"
    script.unlink(missing_ok=True)
    write_script(script, FAKE_ASR)


def recorded(folder: Path) -> list[dict[str, str]]:
    """Return the options of each call of the fake asr.sh, and forget them."""
    calls = (folder / "calls").read_text().split("\036")[:-1]
    (folder / "calls").unlink()
    words = [call.split("\037")[:-1] for call in calls]
    return [dict(zip(w[::2], w[1::2], strict=True)) for w in words]
