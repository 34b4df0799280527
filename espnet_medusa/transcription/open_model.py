"""Find the model of a command line: an experiment, or a Whisper, which is converted once."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path

from espnet_medusa import __version__
from espnet_medusa.convert.attach_heads import SHIPPED, attach_heads
from espnet_medusa.convert.experiment import CONFIG, MODEL, PromptOptions, write_experiment
from espnet_medusa.convert.read_whisper import read_whisper
from espnet_medusa.files.cache_folder import cache_folder
from espnet_medusa.files.output_folder import fingerprint, is_up_to_date, staged_output
from espnet_medusa.inference.experiment import find_experiment
from espnet_medusa.whisper.text import TextOptions
from espnet_medusa.whisper.tokens import DETECT

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelFiles:
    config: Path  # ``config.yaml``
    weights: Path  # checkpoint
    language: str | None = None  # default of ``language``; None: that of the experiment's training


def find_model(name: str, model_file: str | None = None) -> ModelFiles:
    """Find an experiment or convert a Whisper; raise InputError if model or weights do not exist.

    Args:
        name: An experiment's folder or its config.yaml; or a Whisper: hub name, folder or OpenAI
            ``.pt`` file. A converted Whisper is cached, with heads of the package if there are any
            for its weights. It is converted again when its files change.
        model_file: Weights of the experiment; None: the file that conversion or training wrote.
    """
    files = find_experiment(name, model_file, "model")
    if files is not None:
        return ModelFiles(*files)
    folder = _converted(name)
    return ModelFiles(folder / CONFIG, folder / MODEL, DETECT)


def _converted(name: str) -> Path:
    """Return the folder of a Whisper's experiment in the cache."""
    path = Path(name).expanduser()
    if path.exists():
        name = str(path.resolve())
    folder = cache_folder() / "models" / re.sub(r"[^\w.-]+", "--", name).strip("-")
    files = [file for file in (path, *path.glob("*"), *SHIPPED.glob("*/*")) if file.is_file()]
    made_from = fingerprint([], files, {"name": name, "version": __version__})
    if not is_up_to_date(folder, made_from):
        checkpoint, note = attach_heads(read_whisper(name, TextOptions()))
        if note is not None:
            logger.info(note)
        whisper = checkpoint.text.whisper
        language = next(iter(whisper.languages), None) if whisper is not None else None
        with staged_output(folder, made_from) as staging:
            write_experiment(checkpoint, staging, folder, PromptOptions(language))
    return folder
