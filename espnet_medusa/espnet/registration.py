"""Registration of the plugin in the tables of ESPnet's tasks."""

import argparse
from types import ModuleType
from typing import Any

from espnet_medusa.networks.whisper.token_types import WHISPER_PREPROCESSOR


def register_asr() -> None:
    """Add the plugin's classes to the ASR task; a second call changes nothing.

    Raise RuntimeError if ESPnet or another plugin uses a name already.
    """
    from espnet2.tasks import asr

    register_asr_in(asr)


def register_asr3() -> None:
    """Add the plugin's classes to ESPnet3's ASR task; errors as ``register_asr``."""
    from espnet3.systems.esp2_asr import task

    register_asr_in(task)


def register_asr_in(asr: ModuleType) -> None:
    """Add the plugin's classes to a module with an ASR task and its tables."""
    import kaldiio
    from espnet2.tasks.abs_task import optim_classes
    from espnet2.train.dataset import DATA_TYPES
    from transformers.optimization import Adafactor

    from espnet_medusa.decoding.runtime import espnet_scorer
    from espnet_medusa.espnet.training.asr_model import MedusaASRModel
    from espnet_medusa.espnet.training.preprocessor import WhisperPreprocessor
    from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

    _add(asr.encoder_choices, "hf_whisper", HFWhisperEncoder)
    _add(asr.decoder_choices, "whisper_medusa", espnet_scorer.ScoringWhisperDecoder)
    _add(asr.decoder_choices, "speech_llama", espnet_scorer.ScoringLlamaDecoder)
    _add(asr.decoder_choices, "transformer_medusa", espnet_scorer.ScoringTransformerDecoder)
    _add(asr.model_choices, "medusa", MedusaASRModel)
    _add(asr.preprocessor_choices, WHISPER_PREPROCESSOR, WhisperPreprocessor)
    # Not torch's Adafactor: it scales steps by the size of the weights, and heads start at zero.
    optim_classes.setdefault("adafactor", Adafactor)
    # For cached float16 outputs of a frozen model: Kaldi matrices have no float16, and ESPnet
    # 202611 reads only Kaldi matrices as kaldi_ark.
    numpy_ark = {"func": kaldiio.load_scp, "kwargs": ["max_cache_fd"], "help": "arrays of numpy"}
    DATA_TYPES.setdefault("numpy_ark", numpy_ark)
    _wrap_build_model(asr.ASRTask)


def register_s2t() -> None:
    """Add the plugin's classes to the s2t task; errors as ``register_asr``."""
    from espnet2.tasks import s2t

    from espnet_medusa.decoding.runtime.espnet_scorer import ScoringTransformerDecoder
    from espnet_medusa.espnet.training.s2t_model import MedusaS2TModel

    _add(s2t.decoder_choices, "transformer_medusa", ScoringTransformerDecoder)
    _add(s2t.model_choices, "medusa", MedusaS2TModel)


# Called by ``upstream.hooks`` when these modules are imported.
REGISTRATIONS = {
    "espnet2.tasks.asr": register_asr,
    "espnet2.tasks.s2t": register_s2t,
    "espnet3.systems.esp2_asr.task": register_asr3,
}


def _add(table: Any, name: str, kind: type) -> None:
    taken = table.classes.setdefault(name, kind)
    if taken is not kind:
        raise RuntimeError(f"ESPnet's {table.name} '{name}' is {taken} already")


def _wrap_build_model(task: type) -> None:
    """Adapt the options of every ASR model that ESPnet builds, in training and decoding."""
    from espnet_medusa.networks.asr_arguments import take_waveforms, write_out_sizes

    build = task.build_model.__func__
    if build.__module__ == __name__:
        return

    def build_model(cls, args: argparse.Namespace):
        take_waveforms(args)
        model = build(cls, args)
        write_out_sizes(args, model)
        return model

    task.build_model = classmethod(build_model)
