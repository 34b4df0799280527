"""Read the audio of an utterance, check it and preprocess it for one model."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import kaldiio
import numpy as np

from espnet_medusa.data.audio.reader import check_audio, read_audio
from espnet_medusa.data.audio.source import AudioError
from espnet_medusa.data.errors import first_line
from espnet_medusa.inference.audio_batch import AudioLimits
from espnet_medusa.inference.batches import Utterance
from espnet_medusa.networks.whisper.log_mel import HOP_SAMPLES
from espnet_medusa.networks.whisper.token_types import WHISPER_PREPROCESSOR

Preprocess = Callable[[str, dict[str, np.ndarray]], dict[str, np.ndarray]]


def build_preprocess(
    train_args: argparse.Namespace, utt2lang: Path | None = None
) -> Preprocess | None:
    """Build ESPnet's preprocessing function ``(id, data) -> data`` of a trained model.

    ``utt2lang``: languages of Whisper's labels; None: all have that of the training config.
    """
    from espnet2.tasks.asr import ASRTask  # slow to import

    # The file of the training utterances may be missing.
    conf = dict(getattr(train_args, "preprocessor_conf", None) or {})
    conf.pop("utt2lang", None)
    if utt2lang is not None and getattr(train_args, "preprocessor", None) == WHISPER_PREPROCESSOR:
        conf["utt2lang"] = str(utt2lang)
    train_args.preprocessor_conf = conf
    return ASRTask.build_preprocess_fn(train_args, False)


def build_audio_preprocess(train_args: argparse.Namespace) -> Preprocess | None:
    """Return ``build_preprocess``, or None if it does not change audio, as for most Whispers."""
    changes_audio = getattr(train_args, "speech_volume_normalize", None) is not None
    is_whisper = getattr(train_args, "preprocessor", None) == WHISPER_PREPROCESSOR
    return None if is_whisper and not changes_audio else build_preprocess(train_args)


@dataclass(frozen=True)
class UtteranceReader:
    """Reads entries of wav.scp; the sample rate must be the model's."""

    limits: AudioLimits  # audio that the model accepts
    preprocess: Preprocess | None = None  # ESPnet's preprocessing function
    allow_pipes: bool = False  # whether commands in wav.scp may run

    def read(self, key: str, entry: str, max_duration_s: float | None = None) -> Utterance:
        """Read one utterance; ``entry`` is its value in wav.scp, or a path.

        Raise TooLongError if it is longer than ``max_duration_s``, ValueError if audio or features
        cannot be read or do not suit the model.
        """
        size = self.limits.feature_size
        speech = read_features(entry, size) if size else self.read_samples(entry, max_duration_s)
        data = {"speech": speech.astype(np.float32)}
        if self.preprocess is not None:
            data = self.preprocess(key, data)
        return Utterance(key, data["speech"], self.limits.frames(len(data["speech"])))

    def read_samples(self, entry: str, max_duration_s: float | None) -> np.ndarray:
        """Return the samples (N,) in [-1, 1]; arguments and errors as for ``read``."""
        samples, rate_hz = read_audio(entry, self.allow_pipes, max_duration_s=max_duration_s)
        check_audio(samples, rate_hz, self.limits.sample_rate_hz, max_duration_s, HOP_SAMPLES)
        return samples

    def describe(self, entry: str) -> str:
        """Return the name of an utterance's audio in messages."""
        return entry


def read_features(entry: str, size: int) -> np.ndarray:
    """Read features (frames, ``size``) from a Kaldi ark; raise AudioError if it has none."""
    remedy = f"give what ESPnet's stage 3 wrote: matrices (frames, {size}) as kaldi_ark"
    # kaldiio also runs a command that an offset or a range follows, and reads standard input.
    if "|" in entry or entry.startswith("-"):
        raise AudioError(f"{entry}: is a command or standard input", remedy)
    try:
        features = kaldiio.load_mat(entry)
    except Exception as error:  # kaldiio raises many kinds of errors
        raise AudioError(f"{entry}: no features ({first_line(error)})", remedy) from error
    shape = getattr(features, "shape", ("none",))
    if len(shape) != 2 or shape[1] != size or not len(features):
        raise AudioError(f"{entry}: has shape ({', '.join(map(str, shape))})", remedy)
    if not np.isfinite(features).all():
        raise AudioError(f"{entry}: has NaN or infinite values", "extract the features again")
    return features
