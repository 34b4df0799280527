"""Cached output of a frozen encoder, which training reads instead of audio."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from espnet2.asr.espnet_model import ESPnetASRModel

from espnet_medusa.data.errors import InputError
from espnet_medusa.espnet.training.cached_shards import FAILED, Cached, Shards, float16
from espnet_medusa.espnet.training.inputs import trains
from espnet_medusa.inference.audio_batch import AudioBatch, audio_limits, model_encoder
from espnet_medusa.inference.batches import Utterance
from espnet_medusa.inference.job import JobInput
from espnet_medusa.inference.reader import Preprocess, UtteranceReader

MEMORY = "memory"
SETTINGS_FILE = "encoder.yaml"
PARTS = ("frontend", "normalize", "preencoder", "encoder", "postencoder")
SETTINGS = (*(part + end for part in PARTS for end in ("", "_conf")), "init_param")


@torch.no_grad()
def write_memory(
    asr_model: ESPnetASRModel,
    train_args: argparse.Namespace,
    device: str,
    preprocess: Preprocess | None,
    job: JobInput,
    folder: Path,
    batch_size: int,
) -> int:
    """Cache ``memory`` (S, D), a frozen encoder's output, of all utterances of a job.

    Return the number of failed ones. Finished shards are skipped, but for utterances that failed.
    ``folder`` gets ``memory.scp`` and ``failed_utterances``. Raise InputError if all utterances
    failed; others as ``check_frozen``.
    """
    check_frozen(asr_model)
    encoder = model_encoder(asr_model.to(device).eval())
    reader = UtteranceReader(audio_limits(asr_model.encoder, train_args), preprocess)

    def read(key: str) -> Utterance:
        return reader.read(key, job.entries[key], reader.limits.window_s)

    def compute(utterances: Sequence[Utterance]) -> list[Cached]:
        speeches = [torch.as_tensor(utterance.speech) for utterance in utterances]
        memory, frames = AudioBatch(speeches, device, torch.float32).encode(encoder)
        rows = zip(memory, frames.tolist(), strict=True)
        return [{MEMORY: float16(row[:length])} for row, length in rows]

    shards = Shards(job, folder, (MEMORY,))
    shards.run(read, compute, batch_size)
    tables, failed = shards.joined()
    shards.write_joined(tables, {FAILED: failed})
    return len(failed)


def check_frozen(asr_model: ESPnetASRModel) -> None:
    """Raise InputError if the encoder is trained, or its input differs between epochs."""
    for name in PARTS:
        part = getattr(asr_model, name)
        if part is not None and trains(part):
            raise InputError(
                f"{name}: trains; a cache requires a frozen encoder: set freeze_param: [{name}]"
            )
    for owner in (asr_model, asr_model.encoder):
        if getattr(owner, "specaug", None) is not None:
            raise InputError(
                "specaug: masks other features in each epoch, but cached output never changes: set "
                "specaug: null (encoder_conf.use_specaug: false), or train on audio"
            )
