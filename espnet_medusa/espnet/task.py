"""ESPnet's ASR task for the training command.

ESPnet's spawned training processes import this module, and with it the plugin.
"""

import argparse
from pathlib import Path

import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.tasks.asr import ASRTask
from espnet2.torch_utils.load_pretrained_model import load_pretrained_model
from espnet2.train.trainer import Trainer

from espnet_medusa.data.errors import InputError
from espnet_medusa.data.files.checkpoint import check_shapes, load_weights
from espnet_medusa.espnet.training.trainer import ResumableTrainer
from espnet_medusa.networks.multi_token_decoder import MultiTokenDecoder


class MedusaASRTask(ASRTask):
    """ESPnet's ASR task with checked initial weights and resumable training."""

    trainer = ResumableTrainer

    @classmethod
    def required_data_names(cls, train: bool = True, inference: bool = False) -> tuple[str, ...]:
        """Return ESPnet's names; training does not need `speech`: encoder output may be cached."""
        names = super().required_data_names(train, inference)
        return names if inference else tuple(name for name in names if name != "speech")

    @classmethod
    def optional_data_names(cls, train: bool = True, inference: bool = False) -> tuple[str, ...]:
        """Return ESPnet's names, audio, and the cached output of a frozen encoder."""
        return (*super().optional_data_names(train, inference), "speech", "memory", "memory_frames")

    @classmethod
    def main_worker(cls, args: argparse.Namespace) -> None:
        """Run ESPnet's worker; with DeepSpeed, it only accepts ESPnet's own trainer.

        Raise InputError if ``ngpu`` is not 0 and there is no GPU.
        """
        if getattr(args, "ngpu", 0) and not torch.cuda.is_available():
            raise InputError(f"--ngpu {args.ngpu}: torch finds no GPU here; allowed: 0, the CPU")
        if getattr(args, "use_deepspeed", False):
            cls.trainer = Trainer
        super().main_worker(args)

    @classmethod
    def build_model(cls, args: argparse.Namespace) -> ESPnetASRModel:
        """Build the model and check the ``init_param`` files, which ESPnet loads later.

        Raise InputError if a file is missing, could run code, or does not fit the model.
        """
        try:
            model = super().build_model(args)
        except TypeError as error:
            raise InputError(f"config: {error}") from error
        for init_param in getattr(args, "init_param", None) or []:
            _check_init_param(model, init_param, getattr(args, "ignore_init_mismatch", False))
        return model

    @classmethod
    def build_initial_model(cls, args: argparse.Namespace) -> ESPnetASRModel:
        """Build the model in its state at the start of training; errors as ``build_model``."""
        model = cls.build_model(args)
        for init_param in args.init_param:
            load_pretrained_model(init_param, model, args.ignore_init_mismatch)
        frozen = tuple(f"{name}." for name in args.freeze_param)
        for name, parameter in model.named_parameters():
            if f"{name}.".startswith(frozen):
                parameter.requires_grad = False
        return model


def _check_init_param(model: torch.nn.Module, init_param: str, ignore_mismatch: bool) -> None:
    path, source, target, excluded = (init_param.split(":") + ["", "", ""])[:4]
    excluded, prefix = tuple(filter(None, excluded.split(","))), f"{source}." if source else ""
    weights = {
        name.removeprefix(prefix): value
        for name, value in load_weights(Path(path)).items()
        if name.startswith(prefix) and not name.startswith(excluded)
    }
    if not weights:
        raise InputError(f"init_param: {path} has no tensors under '{source}'; correct the name")
    try:
        module = model.get_submodule(target)
    except AttributeError:
        reason = f"init_param: the model has no module '{target}'; correct the name"
        raise InputError(reason) from None
    if not ignore_mismatch:
        if isinstance(getattr(module, "decoder", None), MultiTokenDecoder):
            module.decoder.rename_weights(weights, "decoder.")
        check_shapes(weights, module.state_dict(), path)
