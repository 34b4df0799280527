"""Random Whispers in OpenAI's format, as small as long-form transcription allows."""

import copy
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import yaml
from experiment import Experiment
from whisper.model import ModelDimensions, Whisper

from espnet_medusa.data.files.yaml_text import DUMPER
from espnet_medusa.data.options import read_config
from espnet_medusa.espnet.task import MedusaASRTask
from espnet_medusa.inference.convert.experiment import write_experiment
from espnet_medusa.inference.convert.read_whisper import read_whisper
from espnet_medusa.networks.whisper.text import TextOptions

VOCAB_SIZE, END, FIRST_TIME = 51865, 50257, 50364


def openai_whisper(seed: int, end=0.0, times=0.0, text_context: int = 48) -> Whisper:
    """Build a model; ``end`` and ``times`` are added to logits of the end and of timestamps."""
    torch.manual_seed(seed)
    dims = ModelDimensions(
        n_mels=80, n_audio_ctx=1500, n_audio_state=32, n_audio_head=2, n_audio_layer=1,
        n_vocab=VOCAB_SIZE, n_text_ctx=text_context, n_text_state=32, n_text_head=2, n_text_layer=2,
    )  # fmt: skip
    model = Whisper(dims)
    for name, parameter in model.named_parameters():
        if not name.endswith("ln.weight"):
            torch.nn.init.normal_(parameter, std=0.3)
    table, bias = model.decoder.token_embedding.weight.data, model.decoder.ln.bias.data
    bias /= bias.norm()  # so that a multiple of it in an embedding adds to the logit
    table[END] += end * bias
    table[FIRST_TIME:] += times * bias
    return model.eval()


def save_openai_whisper(model: Whisper, path: Path) -> Path:
    torch.save({"dims": asdict(model.dims), "model_state_dict": model.state_dict()}, path)
    return path


def noise_and_silence(seconds: float, seed: int) -> np.ndarray:
    """Return noise (samples,) at 16 kHz whose loudness changes every second."""
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal(int(16000 * seconds))
    loudness = np.repeat(rng.uniform(0, 0.3, int(seconds) + 1), 16000)[: len(samples)]
    return (samples * loudness).astype(np.float32)


def ctc_whisper(folder: Path, seed: int = 1, **model_conf) -> Experiment:
    """Convert a Whisper that predicts end symbols; add the CTC branch of ``model_conf``."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = save_openai_whisper(openai_whisper(seed, end=4.0), folder / "whisper.pt")
    write_experiment(read_whisper(str(weights), TextOptions()), folder, folder)
    config = read_config(folder / "config.yaml", "")
    config["model_conf"] |= {"ctc_weight": 0.3, **model_conf}
    (folder / "config.yaml").write_text(yaml.dump(config, Dumper=DUMPER))
    model = MedusaASRTask.build_model(Namespace(**copy.deepcopy(config)))
    for parameter in model.ctc.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    whisper = torch.load(folder / "model.pth", weights_only=True)
    torch.save(model.state_dict() | whisper, folder / "model.pth")
    return Experiment(folder)
