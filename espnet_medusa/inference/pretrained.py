"""A Whisper by its name, as an experiment for ``Speech2Text``."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from espnet_medusa.convert.attach_heads import AUTO, SHIPPED, attach_heads
from espnet_medusa.convert.experiment import CONFIG, MODEL, PromptOptions, write_experiment
from espnet_medusa.convert.read_whisper import read_whisper
from espnet_medusa.whisper.text import TextOptions

logger = logging.getLogger(__name__)


class WhisperExperiment:
    """A temporary experiment folder of a Whisper, as ``espnet-medusa-convert`` writes it.

    The tokenizer in it is read as long as the model is in use: the folder goes with this object.

    Args:
        whisper_model: As ``open_whisper``.
        heads: As ``attach_heads``; what it says is logged.
        shipped: Likewise.

    Raises:
        InputError: As ``read_whisper`` and ``attach_heads``.
    """

    def __init__(self, whisper_model: str, heads: str = AUTO, shipped: Path = SHIPPED):
        checkpoint = read_whisper(whisper_model, TextOptions())
        checkpoint, said = attach_heads(checkpoint, heads, shipped)
        if said is not None:
            logger.info(said)
        self._temporary = TemporaryDirectory(prefix="espnet_medusa.")
        folder = Path(self._temporary.name)
        write_experiment(checkpoint, folder, folder, PromptOptions())
        self.config, self.model = folder / CONFIG, folder / MODEL

    def forget_weights(self) -> None:
        """Give back the disk space of weights that were loaded."""
        self.model.unlink()
