"""ESPnet's ASR task with the plugin registered.

A class of its own, so that training processes that ESPnet spawns import this module and with it
the plugin.
"""

import argparse
from pathlib import Path

import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.tasks.asr import ASRTask

from espnet_medusa.checkpoint import check_shapes, load_weights
from espnet_medusa.errors import InputError
from espnet_medusa.model.multi_token_decoder import MultiTokenDecoder
from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.plugin import register

register()


class MedusaASRTask(ASRTask):
    """ASRTask that refuses bad checkpoints before training starts."""

    @classmethod
    def build_model(cls, args: argparse.Namespace) -> ESPnetASRModel:
        """Build the model; look at the ``init_param`` files, which ESPnet loads later.

        Raises:
            InputError: A file is missing, could run code, or does not fit the model.
        """
        try:
            model = super().build_model(args)
        except TypeError as error:
            raise InputError(f"config: {error}") from error
        # ESPnet writes these options next: the experiment shall stand without that folder.
        for conf, module in (
            (args.encoder_conf, model.encoder),
            (args.decoder_conf, model.decoder),
        ):
            if isinstance(module, HFWhisperEncoder | MultiTokenDecoder):
                _write_out(conf, module.conf)
        for init_param in getattr(args, "init_param", None) or []:
            _check_init_param(model, init_param, getattr(args, "ignore_init_mismatch", False))
        return model


def _write_out(conf: dict, sizes: dict) -> None:
    """Put a pretrained model's sizes in its name's place."""
    for name in ("whisper_model", "llama_model"):
        if conf.pop(name, None) is not None:
            conf |= sizes


def _check_init_param(model: torch.nn.Module, init_param: str, ignore_mismatch: bool) -> None:
    path, source, target, excluded = (init_param.split(":") + ["", "", ""])[:4]
    weights = load_weights(Path(path))
    for prefix in filter(None, excluded.split(",")):
        weights = {name: value for name, value in weights.items() if not name.startswith(prefix)}
    if source:
        weights = {
            name[len(source) + 1 :]: value
            for name, value in weights.items()
            if name.startswith(source + ".")
        }
    if not weights:
        raise InputError(f"init_param: {path} holds nothing under '{source}'")
    try:
        module = model.get_submodule(target)
    except AttributeError:
        raise InputError(f"init_param: the model has no module '{target}'") from None
    if not ignore_mismatch:
        check_shapes(weights, module.state_dict(), path)
