"""Find the model of a command line: an experiment, or a Whisper, which is converted once."""

import logging
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from espnet_medusa import __version__
from espnet_medusa.data.files.cache_folder import in_cache
from espnet_medusa.data.files.output_folder import cached_output, digest_of_inputs
from espnet_medusa.inference.convert.attach_heads import SHIPPED, attach_heads
from espnet_medusa.inference.convert.checkpoint import PromptOptions
from espnet_medusa.inference.convert.experiment import CONFIG, MODEL, write_experiment
from espnet_medusa.inference.convert.read_whisper import read_whisper
from espnet_medusa.inference.experiment import find_experiment
from espnet_medusa.networks.whisper.text import TextOptions
from espnet_medusa.networks.whisper.tokens import DETECT

# Raised with each change of what conversion writes: cached models are then converted again.
CONVERSION = 2
logger = logging.getLogger(__name__)


def find_model(name: str, model_file: str | None = None) -> tuple[Path, Path, str | None]:
    """Return config, weights and default language of an experiment, or of a converted Whisper.

    Language None is that of the experiment's training. Raise InputError if there is no such model.

    Args:
        name: An experiment's folder or its config.yaml; or a Whisper: hub name, folder or OpenAI
            ``.pt`` file. A converted Whisper is cached, with heads of the package if there are any
            for its weights. It is converted again when its files change.
        model_file: Weights of the experiment; None: the file that conversion or training wrote.
    """
    files = find_experiment(name, model_file, "model")
    if files is not None:
        return *files, None
    path = Path(os.path.expanduser(name))
    if path.exists():
        name = str(path.resolve())
    files = [
        file
        for file in (path, *path.glob("*"), *path.glob("*/*"), *SHIPPED.glob("*/*"))
        if file.is_file()
    ]
    version = f"{__version__}, conversion {CONVERSION}"
    made_from = digest_of_inputs([], files, {"name": name, "version": version})
    folder_name = re.sub(r"[^\w.-]+", "--", name).strip("-")
    folder = in_cache(f"models/{folder_name}", partial(_convert, name, made_from))
    return folder / CONFIG, folder / MODEL, DETECT


def _convert(name: str, made_from: str, folder: Path) -> Path:
    """Convert a Whisper into a folder, unless it is there; return the folder."""
    with cached_output(folder, made_from) as staging:
        if staging is not None:
            checkpoint, note = attach_heads(read_whisper(name, TextOptions()))
            if note is not None:
                logger.info(note)
            whisper = checkpoint.text.whisper
            language = next(iter(whisper.languages), None) if whisper is not None else None
            write_experiment(replace(checkpoint, prompt=PromptOptions(language)), staging, folder)
    return folder
