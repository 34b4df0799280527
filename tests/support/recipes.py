"""Copies of the repository's recipes in temporary folders, and a fake asr.sh that records calls."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import warm_python
import yaml
from waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "egs" / "TEMPLATE" / "asr1"
GENERATED = ("data", "downloads", "dump", "exp")
LLAMA = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 16}  # fmt: skip
FAKE_ASR = """\
#!/usr/bin/env bash
printf '%s\\037' "$@" >> calls
printf '\\036' >> calls
"""


def link_recipe(root: Path, recipe: str, without: tuple[str, ...] = ()) -> Path:
    """Make `root/egs/<recipe>`, link the recipe's files and folders into it, and return it.

    Names in ``without`` are not linked; for ``conf``, an empty folder is made.
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


def link_short_recipe(root: Path, recipe: str, ways: tuple[str, ...], **lengths: float) -> Path:
    """Link a recipe with only the decode configs ``ways``; ``lengths`` replace their limits."""
    folder = link_recipe(root, recipe, without=("conf",))
    conf = ROOT / "egs" / recipe / "conf"
    for source in conf.iterdir():
        if source.name != "decode":
            (folder / "conf" / source.name).symlink_to(source.resolve())
    for way in ways:
        copy_config(conf / "decode" / f"{way}.yaml", folder / "conf" / "decode", **lengths)
    return folder


def link_template(folder: Path, *more: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("asr.sh", "path.sh", "cmd.sh", *more):
        (folder / name).symlink_to(TEMPLATE / name)
    return folder


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def copy_config(source: Path, target: Path, **changes: Any) -> None:
    """Write a YAML config with changed values to a folder; dictionaries are merged."""
    config = yaml.safe_load(source.read_text())
    for name, value in changes.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    (target / source.name).write_text(yaml.safe_dump(config))


def link_llama_recipe(root: Path, recipe: str, configs: str, *ways: str, **changes: Any) -> Path:
    """Link a recipe with small Speech-LLaMAs; minimum lengths let untrained models write text."""
    folder = link_recipe(root, recipe, without=("conf", "results"))
    for way in ways:
        source = ROOT / "conf" / "decode" / f"{way}.yaml"
        copy_config(source, folder / "conf" / "decode", minlenratio=-3.0, maxlenratio=-8.0)
    changes |= {"decoder_conf": {"llama_conf": LLAMA}, "max_epoch": 1, "use_matplotlib": False}
    for path in (ROOT / "egs" / recipe / "conf").glob(configs):
        copy_config(path, folder / "conf", **changes)
    return folder


def run(
    folder: Path, script: str, *options: object, status: int | None = None
) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [script, *map(str, options)], cwd=folder, text=True, capture_output=True, timeout=HANG_S,
        env=warm_python.environment(),
    )  # fmt: skip
    assert status in (None, done.returncode), done.stdout[-3000:] + done.stderr[-3000:]
    return done


def lines_about(done: subprocess.CompletedProcess, *words: str) -> list[str]:
    return [line for line in done.stdout.splitlines() if all(word in line for word in words)]


def record_asr(folder: Path) -> None:
    (folder / "asr.sh").unlink(missing_ok=True)
    write_script(folder / "asr.sh", FAKE_ASR)


def recorded(folder: Path) -> list[dict[str, str]]:
    """Return the options of each call of the fake asr.sh, and forget them."""
    calls = (folder / "calls").read_text().split("\036")[:-1]
    (folder / "calls").unlink()
    words = [call.split("\037")[:-1] for call in calls]
    return [dict(zip(w[::2], w[1::2], strict=True)) for w in words]


RATE = 16000
WORDS = ["one", "two", "three", "four", "five", "six"]


def write_set(folder: Path, count: int, broken: int = 0) -> None:
    """Write a Kaldi directory of short tones, one speaker; the last files are no audio."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    tables, ids = dict.fromkeys(("wav.scp", "text", "utt2spk"), ""), []
    for index in range(count):
        ids.append(f"s-u{index}")
        path = folder / f"{ids[-1]}.wav"
        samples = np.sin(np.arange(int(RATE * (0.5 + 0.1 * index))) * (0.1 + 0.05 * index))
        samples = 0.3 * samples + 0.01 * generator.standard_normal(len(samples))
        soundfile.write(path, samples, RATE)
        if index >= count - broken:
            path.write_bytes(b"no audio")
        tables["wav.scp"] += f"{ids[-1]} {path}\n"
        tables["text"] += f"{ids[-1]} {WORDS[index]} {WORDS[-1 - index]}\n"
        tables["utt2spk"] += f"{ids[-1]} s\n"
    for name, lines in (tables | {"spk2utt": f"s {' '.join(ids)}\n"}).items():
        (folder / name).write_text(lines)


MODEL = """
encoder: transformer
encoder_conf: {output_size: 8, attention_heads: 1, linear_units: 8, num_blocks: 1}
decoder: transformer
decoder_conf: {attention_heads: 1, linear_units: 8, num_blocks: 1}
model_conf: {ctc_weight: 0.3}
frontend_conf: {n_fft: 512, hop_length: 160}
"""
SHORT_TRAINING = """
optim_conf: {lr: 0.001}
max_epoch: 1
batch_type: sorted
batch_size: 2
num_workers: 0
num_att_plot: 0
use_tensorboard: false
use_matplotlib: false
best_model_criterion: [[valid, acc, max]]
keep_nbest_models: 1
log_interval: 1
"""
TRAINING = MODEL + SHORT_TRAINING
