"""Read utterances and trained models."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from espnet_medusa.data.audio.reader import read_audio
from espnet_medusa.data.audio.source import source_paths
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import read_table
from espnet_medusa.data.options import read_config
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.recipes.tuning.held_out import choose_keys

MODELS = ("valid.acc_heads.ave.pth", "valid.acc.ave.pth")  # of heads, of a base


@dataclass(frozen=True)
class Utterance:
    """An utterance of a data directory, with its audio."""

    id: str
    speech: np.ndarray  # (samples,) in [-1, 1]
    seconds: float  # length of the audio
    text: str  # reference

    def cut(self, length_s: float) -> np.ndarray:
        """Return the samples of the first ``length_s`` seconds."""
        return self.speech[: round(length_s * len(self.speech) / self.seconds)]


@dataclass(frozen=True)
class Listed:
    """An utterance before its audio is read; ``entry`` is its value in wav.scp."""

    id: str
    entry: str
    text: str

    def read(self) -> Utterance:
        speech, rate_hz = read_audio(self.entry)
        return Utterance(self.id, speech, len(speech) / rate_hz, self.text)


def enter_recipe(data_dir: Path) -> None:
    """Change to the recipe's folder, to which wav.scp is relative; raise InputError without one."""
    entry = next(iter(read_table(data_dir / "wav.scp").values()))
    for folder in (Path.cwd(), *data_dir.resolve().parents):
        if all((folder / path).exists() for path in source_paths(entry)):
            os.chdir(folder)
            return
    raise InputError(f"{data_dir}/wav.scp: no parent folder has {entry}; run from the recipe")


def enter_experiment(exp_dir: Path) -> None:
    """Change to the folder to which a config is relative; raise InputError if there is none."""
    exp_dir = exp_dir.resolve()
    tokenizer = read_config(exp_dir / "config.yaml", "give an experiment's folder").get("bpemodel")
    for folder in (Path.cwd(), *exp_dir.parents):
        if tokenizer is None or (folder / tokenizer).exists():
            os.chdir(folder)
            return
    raise InputError(f"{exp_dir}: no parent folder has {tokenizer}; run from the recipe")


def read_utterances(data_dir: Path, count: int | None = None) -> list[Utterance]:
    """Read ``count`` utterances, spread over a data directory; None: all."""
    return [listed.read() for listed in list_utterances(data_dir, count)]


def cut_utterances(
    data_dir: Path, lengths_s: Sequence[float], count: int | None = None
) -> list[Utterance]:
    """Cut utterances to each length: ``count`` (None: all) of those that are long enough for all.

    Raises:
        InputError: No utterance is that long.
    """
    read = (listed.read() for listed in list_utterances(data_dir))
    enough = {one.id: one for one in read if one.seconds >= max(lengths_s)}
    if not enough:
        raise InputError(f"{data_dir}: no utterance of {max(lengths_s):g} s; shorten --seconds")
    names = [*enough] if count is None else choose_keys([*enough], count)
    return [
        Utterance(f"{name}_{length:g}s", enough[name].cut(length), length, "")
        for name in names
        for length in lengths_s
    ]


def list_utterances(data_dir: Path, count: int | None = None) -> list[Listed]:
    """List utterances without their audio; raise InputError if one has no reference."""
    if (data_dir / "segments").is_file():
        raise InputError(f"{data_dir}: has segments; run espnet_medusa.bin.stage format_data")
    texts, entries = read_table(data_dir / "text"), read_table(data_dir / "wav.scp")
    names = [*entries] if count is None else choose_keys([*entries], count)
    for name in names:
        if name not in texts:
            raise InputError(f"{data_dir}/text: {name}: missing; add its line")
    return [Listed(name, entries[name], texts[name]) for name in names]


def load_model(exp_dir: Path) -> Speech2Text:
    """Open the averaged model of an experiment with CTC; raise InputError if there is none."""
    paths = [exp_dir / name for name in MODELS if (exp_dir / name).exists()]
    if not paths:
        raise InputError(f"{exp_dir}: none of {', '.join(MODELS)}; train the model first")
    return Speech2Text(exp_dir / "config.yaml", paths[0], ctc_weight=0.3, lm_weight=0.0)
