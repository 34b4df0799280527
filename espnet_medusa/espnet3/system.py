"""ESPnet3's ASR system with a stage that runs a pretrained Whisper once over training audio."""

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import ClassVar

import soundfile
import yaml
from espnet3.contract.stages import StageSpec
from espnet3.systems.esp2_asr.system import ASRSystem

from espnet_medusa.data.command_line import SOME_FAILED
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.atomic import write_atomically
from espnet_medusa.data.kaldi.table import read_table, write_table
from espnet_medusa.data.options import read_config
from espnet_medusa.espnet.task import MedusaASRTask

CONFS = ("encoder_conf", "decoder_conf")
CONFIGS = "egs3.TEMPLATE.esp2_asr"  # ESPnet's default configs, for ``launch(conf_package=...)``


class MedusaSystem(ASRSystem):
    """ASRSystem with the stage ``cache_states``, and without a tokenizer where no config has one.

    ``cache_states`` of the training config: ``whisper`` (hub name, folder, ``.pt`` file),
    ``model_dir`` (experiment to write, which also decodes), ``data_dirs`` by set,
    ``states_dir`` (folder to write) and ``options`` of ``espnet_medusa.bin.stage cache_states``.
    Labels are Whisper's own texts. Without the block, the stage does nothing.
    """

    stages: ClassVar[tuple[StageSpec, ...]] = (
        *ASRSystem.stages[:2],
        StageSpec(name="cache_states", config="training", log_dir="data_dir"),
        *ASRSystem.stages[2:],
    )

    def cache_states(self, *args, **kwargs) -> None:
        """Convert the Whisper, and cache its texts, states and encoder output of each set."""
        self._reject_stage_args("cache_states", args, kwargs)
        block = self.training_config.get("cache_states")
        if block is None:
            return
        model_dir = Path(block.model_dir)
        if not (model_dir / "config.yaml").is_file():
            _run("convert", block.whisper, model_dir, *block.get("convert_options", ()))
        for name, data_dir in block.data_dirs.items():
            write_lengths(Path(data_dir))
            words = ["--exp_dir", model_dir, "--data_dir", data_dir]
            words += ["--output_dir", Path(block.states_dir, name), *block.get("options", ())]
            _run("stage", "cache_states", *words)

    def train(self, *args, **kwargs) -> None:
        """Train, and write the sizes of a pretrained Whisper into the experiment's config."""
        super().train(*args, **kwargs)
        write_sizes(self.exp_dir / "config.yaml")

    def _has_tokenizer(self) -> bool:
        """Return whether a tokenizer exists, or none is to be trained."""
        return self.training_config.get("tokenizer") is None or super()._has_tokenizer()


def write_lengths(data_dir: Path) -> None:
    """Write utt2num_samples of a data directory unless it exists."""
    path = data_dir / "utt2num_samples"
    if not path.is_file():
        audio = read_table(data_dir / "wav.scp")
        write_table(path, {key: str(soundfile.info(file).frames) for key, file in audio.items()})


def write_sizes(path: Path) -> None:
    """Replace ``whisper_model`` in a training config by sizes: decoding then does not need it."""
    config = read_config(path, "train again")
    if any("whisper_model" in (config.get(part) or {}) for part in CONFS):
        args = Namespace(**config)
        MedusaASRTask.build_model(args)  # writes the sizes
        config |= {name: getattr(args, name) for name in CONFS}
        write_atomically(path, yaml.safe_dump(config, sort_keys=False))


def _run(command: str, *words: object) -> None:
    """Run a command of the package in a process of its own, which then frees its memory."""
    done = subprocess.run([sys.executable, "-m", f"espnet_medusa.bin.{command}", *map(str, words)])
    if done.returncode not in (0, SOME_FAILED):  # some: listed in failed_utterances
        raise InputError(f"{command} {words[0]}: failed; its message is above")
