"""The only module that touches ESPnet's choice tables."""

from espnet2.tasks.abs_task import optim_classes
from espnet2.tasks.asr import decoder_choices, encoder_choices, model_choices, preprocessor_choices
from espnet2.train.class_choices import ClassChoices
from transformers.optimization import Adafactor

from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.runtime.espnet_scorer import ScoringLlamaDecoder, ScoringWhisperDecoder
from espnet_medusa.training.asr_model import MedusaASRModel
from espnet_medusa.training.preprocessor import WhisperPreprocessor

WHISPER = "whisper"

TABLES: list[tuple[ClassChoices, str, type]] = [
    (encoder_choices, "hf_whisper", HFWhisperEncoder),
    (decoder_choices, "whisper_medusa", ScoringWhisperDecoder),
    (decoder_choices, "speech_llama", ScoringLlamaDecoder),
    (model_choices, "medusa", MedusaASRModel),
    (preprocessor_choices, WHISPER, WhisperPreprocessor),
]


def register() -> None:
    """Add the plugin's classes to ESPnet's tables; calling it again changes nothing.

    Raises:
        RuntimeError: ESPnet or another plugin has the name already.
    """
    for table, name, kind in TABLES:
        taken = table.classes.setdefault(name, kind)
        if taken is not kind:
            raise RuntimeError(f"ESPnet's {table.name} '{name}' is {taken} already")
    # Not torch's: its steps follow the size of the weights, and heads start at zero.
    optim_classes.setdefault("adafactor", Adafactor)
