"""The outputs of a frozen encoder, computed once and kept: training reads them, not audio."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import yaml
from espnet2.asr.espnet_model import ESPnetASRModel

from espnet_medusa.errors import InputError
from espnet_medusa.files.atomic import write_atomically
from espnet_medusa.inference.audio_batch import AudioBatch, model_encoder
from espnet_medusa.inference.batches import Utterance
from espnet_medusa.inference.job import JobInput
from espnet_medusa.inference.reader import Preprocess, UtteranceReader
from espnet_medusa.options import read_yaml
from espnet_medusa.training.cached_shards import FAILED, Cached, Shards, float16

MEMORY = "memory"
MADE_WITH = "encoder.yaml"
PARTS = ("frontend", "normalize", "preencoder", "encoder", "postencoder")
SETTINGS = (*(part + end for part in PARTS for end in ("", "_conf")), "init_param")


class MemoryKeeper:
    """Runs a model's frozen encoder over audio.

    Args:
        asr_model: With the initial weights of its training.
        train_args: ESPnet's, of that training.
        device: Where to run it.
        preprocess: ESPnet's preprocessing function of audio, or None.

    Raises:
        InputError: The encoder trains, or hears something else in every epoch.
    """

    def __init__(
        self,
        asr_model: ESPnetASRModel,
        train_args: argparse.Namespace,
        device: str = "cpu",
        preprocess: Preprocess | None = None,
    ):
        check_frozen(asr_model)
        self.asr_model = asr_model.to(device).eval()
        self.encoder = model_encoder(self.asr_model)
        self.reader = UtteranceReader.for_model(asr_model, train_args, preprocess)
        self.device = device

    @torch.no_grad()
    def keep(self, utterances: Sequence[Utterance]) -> list[Cached]:
        """``memory`` (S, D) of each of several utterances."""
        speeches = [torch.as_tensor(utterance.speech) for utterance in utterances]
        audio = AudioBatch(speeches, self.device, torch.float32)
        memory, frames = audio.encode(self.encoder)
        return [
            Cached({MEMORY: float16(memory[row, :length])}, {})
            for row, length in enumerate(frames.tolist())
        ]

    def run(self, job: JobInput, folder: Path, batch_size: int) -> int:
        """Keep the outputs for all utterances, shard by shard; shards that are there stay.

        Args:
            job: Ids and audio.
            folder: To write ``memory.scp`` and ``failed_utterances`` into.
            batch_size: Utterances that run together.

        Returns:
            Number of utterances without outputs.

        Raises:
            InputError: No utterance has any.
        """

        def read(key: str) -> Utterance:
            return self.reader.read(key, job.entries[key], self.reader.window_s)

        shards = Shards(job, folder, (MEMORY,))
        shards.run(read, self.keep, batch_size)
        tables, failed = shards.joined()
        shards.write_joined(tables, {FAILED: failed})
        return len(failed)


def check_frozen(asr_model: ESPnetASRModel) -> None:
    """Refuse to keep what changes while the decoder trains.

    Raises:
        InputError: A part up to the encoder trains, or masks its features anew in every epoch.
    """
    for name in PARTS:
        part = getattr(asr_model, name)
        if part is not None and any(weight.requires_grad for weight in part.parameters()):
            raise InputError(
                f"{name}: trains; outputs are kept of a frozen encoder: set freeze_param: [{name}]"
            )
    for owner in (asr_model, asr_model.encoder):
        if getattr(owner, "specaug", None) is not None:
            raise InputError(
                "specaug: masks features anew in every epoch; kept outputs stay as they are: set "
                "specaug: null (encoder_conf.use_specaug: false), or train on audio"
            )


def check_same_encoder(train_args: argparse.Namespace, folder: Path) -> None:
    """Write down whose outputs a folder holds; go on with no other encoder's.

    Raises:
        InputError: The folder holds another one's.
    """
    settings = {name: getattr(train_args, name) for name in SETTINGS}
    written = folder / MADE_WITH
    if not written.is_file():
        write_atomically(written, yaml.safe_dump(settings))
    elif read_yaml(written, "remove the folder") != settings:
        raise InputError(
            f"{folder}: holds the outputs of another encoder, see {written}; name another folder, "
            "or remove this one"
        )
