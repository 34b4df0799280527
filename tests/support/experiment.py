"""A tiny experiment folder as ESPnet's training leaves it, with random weights."""

import copy
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import torch
import yaml

from espnet_medusa.data.options import read_config
from espnet_medusa.espnet.task import MedusaASRTask

TOKENS = ["<blank>", "<unk>", "<space>", *"abcdefghij", "<sos/eos>"]
WINDOW_S = 2.0


@dataclass(frozen=True)
class Experiment:
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def model(self) -> Path:
        return self.folder / "model.pth"

    def options(self) -> list[str]:
        return ["--asr_train_config", str(self.config), "--asr_model_file", str(self.model)]


ENCODER = {
    "output_size": 32, "num_blocks": 1, "attention_heads": 2, "linear_units": 48,
    "max_source_positions": 100,
}  # fmt: skip
DECODER = {
    "num_blocks": 1, "attention_heads": 2, "linear_units": 48, "max_target_positions": 40,
}  # fmt: skip
LLAMA = {
    "llama_conf": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                   "intermediate_size": 48},
    "heads": "latent", "heads_conf": {"num_heads": 4},
}  # fmt: skip
NO_CTC = {"ctc_weight": 0.0, "extract_feats_in_collect_stats": False}


def training_config(**changes) -> dict:
    """Config of a tiny Medusa model; ``changes`` replace top-level keys."""
    return {
        "encoder": "hf_whisper", "encoder_conf": dict(ENCODER), "decoder": "whisper_medusa",
        "decoder_conf": DECODER | {"heads": "block", "heads_conf": {"num_heads": 3}},
        "model": "medusa",
        "model_conf": NO_CTC | {"ctc_weight": 0.3, "report_cer": False, "report_wer": False},
        "input_size": 1, "frontend": None, "normalize": None, "token_type": "char",
    } | changes  # fmt: skip


def dry_run(task, folder: Path, config: dict, *options, tokens=TOKENS) -> dict:
    """Write an experiment folder with ESPnet's task, without training; return its config."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokens.txt").write_text("\n".join(tokens) + "\n")
    (folder / "train.yaml").write_text(yaml.safe_dump(config))
    command = ["--config", folder / "train.yaml", "--token_list", folder / "tokens.txt"]
    command += ["--output_dir", folder, "--dry_run", "true", *options]
    task.main(cmd=list(map(str, command)))
    return read_config(folder / "config.yaml", "")


def make_experiment(
    folder: Path, seed: int = 0, tokens=TOKENS, keep_weights: bool = False, **changes
) -> Experiment:
    """Write config and weights: random ones, or those that the model is made with."""
    torch.manual_seed(seed)
    config = training_config(**changes)
    config = dry_run(MedusaASRTask, folder, config, "--seed", seed, tokens=tokens)
    if keep_weights:  # the written config does not name the pretrained models
        config |= changes
    save_random(MedusaASRTask, folder, config, 0.25, kept="" if keep_weights else ())
    return Experiment(folder)


def save_random(task, folder: Path, config: dict, std: float, kept: str | tuple = ()) -> None:
    """Write weights: random ones, but initial ones for names that begin with ``kept``."""
    model = task.build_model(Namespace(**copy.deepcopy(config)))
    for name, parameter in model.named_parameters():
        if not name.startswith(kept):
            torch.nn.init.normal_(parameter, std=std)
    torch.save(model.state_dict(), folder / "model.pth")


def noise(seed: int, samples: int = 20000) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


def write_noise(path: Path, seconds: float, seed: int = 0, rate_hz: int = 16000) -> None:
    soundfile.write(path, noise(seed, int(seconds * rate_hz)), rate_hz)


def write_samples(folder: Path, samples: dict[str, np.ndarray]) -> None:
    for key, speech in samples.items():
        soundfile.write(folder / f"{key}.wav", speech, 16000, subtype="FLOAT")
    write_lines(folder / "wav.scp", {key: folder / f"{key}.wav" for key in samples})


def write_lines(path: Path, table: dict) -> None:
    path.write_text("".join(f"{key} {value}\n" for key, value in table.items()))


def write_corpus(folder: Path, seconds: dict[str, float]) -> None:
    for seed, (key, duration_s) in enumerate(seconds.items()):
        write_noise(folder / f"{key}.wav", duration_s, seed=seed)
    write_lines(folder / "wav.scp", {key: folder / f"{key}.wav" for key in seconds})


def read_lines(path: Path) -> dict[str, str]:
    rows = (line.partition(" ") for line in path.read_text().splitlines())
    return {key: rest for key, _, rest in rows}


def speeches(count: int = 3, step: int = 3700) -> list[np.ndarray]:
    """Return noise: 4,000 samples in the first array, ``step`` more in each further one."""
    return [noise(number, 4000 + step * number) for number in range(count)]
