"""Datasets of ESPnet3 recipes: Kaldi data directories, and cached states of a frozen Whisper."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kaldiio
import numpy as np
import soundfile
from espnet2.train.preprocessor import AbsPreprocessor
from espnet3.components.data.base_dataset import BaseDataset
from espnet3.components.data.dataset_builder import DatasetBuilder
from espnet3.contract import Field

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.kaldi.table import read_table

TEXT_INT = "text_int"
ARRAYS = {"states": "speech", "memory": "memory", "memory_frames": "memory_frames"}


class KaldiDataset(BaseDataset):
    """Utterances of a data directory with wav.scp and text, in the order of wav.scp.

    Args:
        data_dir: The directory, relative to ``recipe_dir``.
        recipe_dir: Folder of the recipe, in which relative paths of wav.scp are.
        utterances: Maximum number of utterances; None: all.
        names: Whether items have ``utt_id``, which training does not accept.
    """

    def __init__(
        self,
        data_dir: str,
        recipe_dir: str = ".",
        utterances: int | None = None,
        names: bool = False,
    ):
        self.root = Path(recipe_dir)
        self.audio = read_table(self.root / data_dir / "wav.scp")
        self.texts = read_table(self.root / data_dir / "text")
        self.keys = [*self.audio][:utterances]
        if lost := [key for key in self.keys if key not in self.texts]:
            raise InputError(f"{data_dir}/text: has no line for {lost[0]}; add it")
        self.names = names
        ids = (Field("utt_id", "text"),) if names else ()
        self.fields = (*ids, Field("speech", "audio"), Field("text", "text"))

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> dict[str, Any]:
        key = self.keys[int(index)]
        speech, _ = soundfile.read(self.root / self.audio[key], dtype="float32")
        item = {"speech": speech, "text": self.texts[key]}
        return {"utt_id": key, **item} if self.names else item


class CachedStatesDataset(BaseDataset):
    """Hidden states, encoder output and labels of a folder that ``cache_states`` has written.

    Items have ``speech`` (L + 1, D), ``memory`` (S, D), ``memory_frames`` (S,) if padding is
    merged, and ``text`` (L,).
    """

    fields = (Field("speech", "audio"),)

    def __init__(self, states_dir: str, recipe_dir: str = ".", utterances: int | None = None):
        folder = Path(recipe_dir) / states_dir
        self.labels = read_table(folder / TEXT_INT)
        self.keys = [*self.labels][:utterances]
        self.arrays = {
            name: kaldiio.load_scp(str(folder / f"{file}.scp"))
            for file, name in ARRAYS.items()
            if (folder / f"{file}.scp").is_file()
        }

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        key = self.keys[int(index)]
        label = np.array([*map(int, self.labels[key].split())], dtype=np.int64)
        arrays = {name: np.float32(table[key]) for name, table in self.arrays.items()}
        return {**arrays, "text": label}


class KeepArrays(AbsPreprocessor):
    """Passes items on: ESPnet3 collates batches as ESPnet only with a preprocessor."""

    def __call__(self, uid: str, data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return ``data``."""
        return data


class ScriptBuilder(DatasetBuilder):
    """Builds data directories with the script of an ``egs`` recipe.

    A subclass sets ``script``, relative to the recipe's folder. ``create_dataset`` of the training
    config has ``recipe_dir``, ``data_dirs`` (what the script writes) and ``options`` of the script.
    """

    script: str

    def is_source_prepared(self, **options: Any) -> bool:
        """Return True: the script also fetches what it needs."""
        return True

    def prepare_source(self, **options: Any) -> None:
        """Do nothing."""

    def is_built(self, recipe_dir: str, data_dirs: Sequence[str], **others: Any) -> bool:
        """Return whether all data directories exist."""
        return not self._missing(recipe_dir, data_dirs)

    def build(
        self, recipe_dir: str, data_dirs: Sequence[str], options: Sequence[str] = (), **others: Any
    ) -> None:
        """Run the script in the recipe's folder.

        Raises:
            InputError: It fails, or does not write one of ``data_dirs``.
        """
        words = [sys.executable, self.script, *map(str, options)]
        if subprocess.run(words, cwd=recipe_dir).returncode:
            raise InputError(f"create_dataset: {self.script} failed; its message is above")
        if missing := self._missing(recipe_dir, data_dirs):
            raise InputError(
                f"create_dataset: data_dirs: {', '.join(missing)}; {self.script} writes no such "
                "folder with these options; correct data_dirs or options"
            )

    def _missing(self, recipe_dir: str, data_dirs: Sequence[str]) -> list[str]:
        return [name for name in data_dirs if not Path(recipe_dir, name, "wav.scp").is_file()]


def read_texts(data_dir: str) -> list[str]:
    """Return the texts of a data directory, for ``tokenizer.text_builder``."""
    return [*read_table(Path(data_dir) / "text").values()]
