"""A random Whisper with a CTC branch, as an experiment."""

import copy
from argparse import Namespace
from pathlib import Path

import torch
import yaml
from experiment import Experiment
from openai_whisper import openai_whisper, save_openai_whisper

from espnet_medusa.convert.experiment import PromptOptions, write_experiment
from espnet_medusa.convert.read_whisper import read_whisper
from espnet_medusa.files.yaml_text import DUMPER
from espnet_medusa.options import read_config
from espnet_medusa.task import MedusaASRTask
from espnet_medusa.whisper.text import TextOptions


def ctc_whisper(folder: Path, seed: int = 1, **model_conf) -> Experiment:
    """Convert a Whisper that ends, and give it the branch of ``model_conf``."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = save_openai_whisper(openai_whisper(seed, end=4.0), folder / "whisper.pt")
    checkpoint = read_whisper(str(weights), TextOptions())
    write_experiment(checkpoint, folder, folder, PromptOptions("en"))
    config = read_config(folder / "config.yaml", "")
    config["model_conf"] |= {"ctc_weight": 0.3, **model_conf}
    (folder / "config.yaml").write_text(yaml.dump(config, Dumper=DUMPER))
    model = MedusaASRTask.build_model(Namespace(**copy.deepcopy(config)))
    for parameter in model.ctc.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    whisper = torch.load(folder / "model.pth", weights_only=True)
    torch.save(model.state_dict() | whisper, folder / "model.pth")
    return Experiment(folder)
