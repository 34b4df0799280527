"""Windows of long recordings on their way into encoders: cut out of features of the whole."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from espnet_medusa.inference.audio_batch import AudioBatch
from espnet_medusa.longform.window import Window
from espnet_medusa.model.whisper_encoder import FeatureKind, HFWhisperEncoder
from espnet_medusa.whisper.log_mel import HOP_SAMPLES


@dataclass(frozen=True)
class RecordingFeatures:
    """Features of a whole recording.

    Attributes:
        frames: Of the recording, 10 ms each.
        kinds: (frames + silence, num_mel_bins) for each kind that an encoder reads.
    """

    frames: int
    kinds: Mapping[FeatureKind, torch.Tensor]


def recording_features(
    samples: torch.Tensor, encoders: Sequence[HFWhisperEncoder]
) -> RecordingFeatures:
    """Features of a recording (samples,) and of a window of silence behind it."""
    kinds, by_bins = {}, {}
    for encoder in encoders:
        kind, silence = encoder.feature_kind, encoder.window_samples // HOP_SAMPLES
        if kind.num_mel_bins not in by_bins:
            by_bins[kind.num_mel_bins] = encoder.log_mel.recording(samples, silence)
        kinds[kind] = by_bins[kind.num_mel_bins]
    return RecordingFeatures(len(samples) // HOP_SAMPLES, kinds)


class WindowBatch(AudioBatch):
    """U windows; behind a shorter one stand zeros, as openai-whisper has it, if encoders hear them.

    Args:
        windows: U, each with its recording's features.
        window_frames: Frames of 10 ms that encoders hear at once.
    """

    def __init__(self, windows: Sequence[tuple[RecordingFeatures, Window]], window_frames: int):
        self._features, self._encoded = {}, {}
        kinds = windows[0][0].kinds
        device = next(iter(kinds.values())).device
        frames = torch.tensor([window.frames for _, window in windows], device=device)
        self.lengths = frames * HOP_SAMPLES
        for kind, like in kinds.items():
            padded = torch.full_like(frames, window_frames) if kind.padded else frames
            features = like.new_zeros(len(windows), int(padded.max()), kind.num_mel_bins)
            for row, (recording, window) in enumerate(windows):
                part = recording.kinds[kind][window.seek : window.seek + window.frames]
                features[row, : len(part)] = part
            self._features[kind] = features, padded

    def select(self, rows: Sequence[int]) -> WindowBatch:
        """Some of the windows, with what was computed of them."""
        chosen, rows = copy.copy(self), [*rows]
        chosen.lengths = self.lengths[rows]
        for name in ("_features", "_encoded"):
            table = {
                key: (part[rows], sizes[rows]) for key, (part, sizes) in vars(self)[name].items()
            }
            setattr(chosen, name, table)
        return chosen
