"""Read the audio of an utterance, check it and preprocess it for one model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from espnet_medusa.audio.reader import check_audio, read_audio
from espnet_medusa.inference.audio_batch import AudioLimits
from espnet_medusa.inference.batches import Utterance
from espnet_medusa.whisper.log_mel import HOP_SAMPLES
from espnet_medusa.whisper.token_types import WHISPER_PREPROCESSOR

Preprocess = Callable[[str, dict[str, np.ndarray]], dict[str, np.ndarray]]


def build_preprocess(train_args: argparse.Namespace) -> Preprocess | None:
    """Build ESPnet's preprocessing ``(id, data) -> data`` of a model; None if there is none.

    For Whisper labels the preprocessor only changes the audio if it normalizes the volume.
    """
    changes_audio = getattr(train_args, "speech_volume_normalize", None) is not None
    if getattr(train_args, "preprocessor", None) == WHISPER_PREPROCESSOR and not changes_audio:
        return None
    from espnet2.tasks.asr import ASRTask  # slow to import

    # Decoding does not need this file of training utterances, which may be missing.
    (getattr(train_args, "preprocessor_conf", None) or {}).pop("utt2lang", None)
    return ASRTask.build_preprocess_fn(train_args, False)


@dataclass(frozen=True)
class UtteranceReader:
    """Reads entries of wav.scp; the sample rate must be the model's."""

    limits: AudioLimits  # audio that the model accepts
    preprocess: Preprocess | None = None  # ESPnet's preprocessing function
    allow_pipes: bool = False  # whether commands in wav.scp may run

    def read(self, key: str, entry: str, max_duration_s: float | None = None) -> Utterance:
        """Read one utterance.

        Args:
            entry: Value in wav.scp, or path.
            max_duration_s: Longest duration that is allowed; None: no limit.

        Raises:
            TooLongError: The audio is longer.
            ValueError: The audio cannot be read or does not suit the model.
        """
        data = {"speech": self.read_samples(entry, max_duration_s).astype(np.float32)}
        if self.preprocess is not None:
            data = self.preprocess(key, data)
        return Utterance(key, data["speech"], self.limits.frames(len(data["speech"])))

    def read_samples(self, entry: str, max_duration_s: float | None) -> np.ndarray:
        """Return the samples (N,) in [-1, 1]; arguments and errors as for ``read``."""
        samples, rate_hz = read_audio(
            entry, allow_pipes=self.allow_pipes, max_duration_s=max_duration_s
        )
        check_audio(samples, rate_hz, self.limits.sample_rate_hz, max_duration_s, HOP_SAMPLES)
        return samples

    def describe(self, key: str, entry: str) -> str:
        """Return the name of an utterance in messages."""
        return f"{entry}: {key}"
