"""Batches of audio for encoders: features and encoder output are computed once."""

from __future__ import annotations

import copy
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from espnet_medusa.data.audio.reader import MAX_AMPLITUDE
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import check_choice, parse_rate
from espnet_medusa.data.threads import lock_of
from espnet_medusa.decoding.runtime.encoder import build_encoder_runtime
from espnet_medusa.decoding.runtime.native_encoder import NativeEncoder
from espnet_medusa.decoding.runtime.precision import encoder_precision
from espnet_medusa.inference.longform.window import FRAMES_PER_S, Window
from espnet_medusa.networks.masks import inside
from espnet_medusa.networks.merged_padding import FULL, MERGED, PADDINGS, kept_rows
from espnet_medusa.networks.whisper.log_mel import HOP_SAMPLES, SAMPLE_RATE_HZ
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.networks.whisper_encoder import WHISPER_WINDOW, FeatureKind, HFWhisperEncoder

# Encoder output (U, S, D), and its lengths (U,) or, with merged padding, frames per row (U, S).
Encoded = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class AudioLimits:
    """The audio that a model accepts, or features in its place."""

    sample_rate_hz: int  # with features: their frames per second
    window_s: float | None = None  # longest audio; None without limit
    padded: bool = False  # whether the encoder pads all audio to the window
    feature_size: int | None = None  # D of features (frames, D); None: the model reads samples
    max_amplitude: float = MAX_AMPLITUDE  # of samples

    def read(self, speech: Any) -> torch.Tensor:
        """Return an array as a tensor (samples,), or features (frames, D).

        As in ESPnet, samples may also be (1, samples) or (samples, 1), and features (1, frames, D).
        Raise InputError for a path, another shape, or as ``check_values``.
        """
        if isinstance(speech, str | os.PathLike):
            raise InputError(
                f"speech: {str(speech)!r}; allowed: samples; for files: espnet_medusa.transcribe"
            )
        speech, dimensions = torch.as_tensor(speech), 1 if self.feature_size is None else 2
        given = tuple(speech.shape)
        if len(given) == dimensions + 1 and given[0] == 1:
            speech = speech[0]
        elif dimensions == 1 and len(given) == 2 and given[1] == 1:
            speech = speech[:, 0]
        if speech.dim() != dimensions:
            allowed = "(samples,), one channel" if dimensions == 1 else "(frames, features)"
            raise InputError(
                f"speech: has shape {given}; allowed: {allowed}; several utterances: a list"
            )
        self.check_values(speech)
        return speech

    def check_values(self, speech: Any) -> None:
        """Raise InputError for integers, NaN, infinite values, and samples far outside [-1, 1]."""
        speech = torch.as_tensor(speech)
        if not speech.is_floating_point():
            raise InputError(f"speech: {speech.dtype}; allowed: floats, samples in [-1, 1]")
        if not speech.isfinite().all():
            raise InputError("speech: has NaN or infinite values; remove them")
        if self.feature_size is None and speech.numel():
            peak = float(speech.abs().max())
            if peak > self.max_amplitude:
                raise InputError(
                    f"speech: reaches an amplitude of {peak:g}; allowed: samples in [-1, 1]; "
                    "divide 16-bit integers by 32768"
                )

    def frames(self, samples: int) -> int:
        """Return the number of 10 ms frames that the encoder reads, padding included."""
        if self.padded:
            return round(self.window_s * FRAMES_PER_S)
        return samples * FRAMES_PER_S // self.sample_rate_hz


def audio_limits(encoder: torch.nn.Module, train_args: Namespace) -> AudioLimits:
    """Return the limits of a trained encoder, from its window or its frontend's config.

    Without both, a model was trained on features, which asr.sh extracts every 10 ms.
    """
    window_samples = getattr(encoder, "window_samples", None)
    # ESPnet's preprocessing function may scale audio, such as to 32768.
    scale = getattr(train_args, "speech_volume_normalize", None) or 1.0
    scaled = {"max_amplitude": max(scale, MAX_AMPLITUDE)}
    if window_samples is not None:
        padded = getattr(encoder, "window", None) == WHISPER_WINDOW
        return AudioLimits(SAMPLE_RATE_HZ, window_samples / SAMPLE_RATE_HZ, padded, **scaled)
    if getattr(train_args, "frontend", None) is None and train_args.input_size is not None:
        return AudioLimits(FRAMES_PER_S, feature_size=train_args.input_size)
    rate = (getattr(train_args, "frontend_conf", None) or {}).get("fs", SAMPLE_RATE_HZ)
    return AudioLimits(parse_rate(str(rate)), **scaled)


@dataclass(frozen=True)
class SpeechEncoder:
    """An encoder with all network parts before the decoder."""

    # ``(inputs (U, N, ...), lengths (U,))`` to ``Encoded``.
    encode: Callable[..., Encoded]
    # Whisper's encoder: ``encode`` reads its log-mel features; None: samples, or other features.
    whisper: HFWhisperEncoder | None
    # True: padding and pauses are merged; ``encode`` also takes the mask (U, S) of unmerged rows.
    merged: bool = False
    together: bool = True  # whether an utterance has the same output alone and in a batch
    packed: bool = False  # whether ``encode`` has its own copy of the weights of ``whisper``
    precision: str = "of its weights"

    def unpadded(
        self, encoder_out: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return U encoder outputs (S', D) without padding of the batch and of Whisper's window.

        Arguments are those of ``HFWhisperEncoder.unpadded``.
        """
        if self.whisper is None:
            return [row[:length] for row, length in zip(encoder_out, frames.tolist(), strict=True)]
        return self.whisper.unpadded(encoder_out, frames, lengths)

    def release(self) -> None:
        """Free the module's weights if ``encode`` has its own copy."""
        if self.packed:
            self.whisper.release()

    def is_like(self, other: SpeechEncoder) -> bool:
        """Return whether both are one Whisper encoder, as distil-whisper's and its teacher's."""
        here, there = self.whisper, other.whisper
        if here is None or there is None:
            return False
        if (here.conf, here.subsampling) != (there.conf, there.subsampling):
            return False
        weights, others = here.state_dict(), there.state_dict()
        return all(torch.equal(weight, others[name]) for name, weight in weights.items())


def model_encoder(
    model: torch.nn.Module, precision: str | None = None, padding: str | None = None
) -> SpeechEncoder:
    """Build a ``SpeechEncoder`` from the parts of an ESPnet model before its decoder.

    ``precision`` and ``padding`` are the decode options ``encoder_precision`` and
    ``encoder_padding``. They only apply to a Whisper encoder as in ``encodes_only_log_mel``. Merged
    padding also needs Whisper's decoder, or an encoder that drops padded frames. Raise InputError
    if the device does not support the precision, or the model cannot merge padding.
    """

    def encode(inputs: torch.Tensor, lengths: torch.Tensor) -> Encoded:
        with lock_of(model):
            encoder_out, frames = model.encode(inputs, lengths)
        # A tuple also holds the outputs of intermediate CTC.
        return (encoder_out[0] if isinstance(encoder_out, tuple) else encoder_out), frames

    if padding is not None:
        check_choice(padding, PADDINGS, "encoder_padding")
    if padding == MERGED and not can_merge_padding(model):
        raise InputError(
            f"encoder_padding: {MERGED}; allowed with encoder: hf_whisper (window: whisper) "
            "without frontend and normalization, and with crop_to_audio or decoder: "
            f"whisper_medusa; use {FULL}"
        )
    if not isinstance(model.encoder, HFWhisperEncoder):
        # In a batch with longer audio, ESPnet's encoders return different and additional frames.
        # Therefore each utterance is encoded alone, as in ESPnet's search.
        return SpeechEncoder(encode, None, together=False)
    if not encodes_only_log_mel(model):
        return SpeechEncoder(encode, None)
    whisper, runtime = model.encoder, build_encoder_runtime(model.encoder, precision)
    native = isinstance(runtime, NativeEncoder)
    # A decoder that was trained on cropped output is less used to merged padding (bench/NOTES.md).
    by_default = native and not whisper.crop_to_audio and can_merge_padding(model)
    merged = padding == MERGED or (padding is None and by_default)
    if runtime is None:
        return SpeechEncoder(whisper.encode, whisper, merged)
    chosen = encoder_precision(precision, next(whisper.parameters()).device)
    return SpeechEncoder(runtime, whisper, merged, packed=True, precision=str(chosen))


def encodes_only_log_mel(model: torch.nn.Module) -> bool:
    """Return whether a model's encoder output depends only on a Whisper's log-mel features."""
    others = "frontend", "normalize", "preencoder", "postencoder"
    return isinstance(model.encoder, HFWhisperEncoder) and all(
        getattr(model, part) is None for part in others
    )


def can_merge_padding(model: torch.nn.Module) -> bool:
    """Return whether a model has Whisper's window, and its decoder reads merged rows or none."""
    return (
        encodes_only_log_mel(model)
        and model.encoder.window == WHISPER_WINDOW
        and (model.encoder.crop_to_audio or isinstance(model.decoder, WhisperMedusaDecoder))
    )


class AudioBatch:
    """U utterances, each (samples,) in [-1, 1], or features (frames, D).

    ``together``: most utterances in an encoder at once; None: all.
    """

    def __init__(
        self,
        speeches: Sequence[torch.Tensor],
        device: str | torch.device,
        dtype: torch.dtype,
        together: int | None = None,
    ):
        self.together = together
        self.lengths = torch.tensor([*map(len, speeches)], device=device)
        self.samples = pad_sequence(list(speeches), batch_first=True).to(device, dtype)
        self._features: dict[FeatureKind, Encoded] = {}
        self._encoded: dict[SpeechEncoder, Encoded] = {}

    def encode(self, encoder: SpeechEncoder) -> Encoded:
        """Return encoder output (U, S, D) and lengths, as in ``Encoded``; cached per encoder."""
        if encoder not in self._encoded:
            self._encoded[encoder] = self._encode(encoder)
        return self._encoded[encoder]

    @torch.no_grad()
    def _encode(self, encoder: SpeechEncoder) -> Encoded:
        if encoder.together:
            inputs, most = self._inputs(encoder), self.together or len(self.lengths)
            parts = [
                encoder.encode(*(part[first : first + most] for part in inputs))
                for first in range(0, len(self.lengths), most)
            ]
            encoder_out, frames = join_encoded(parts)
            if encoder.whisper is not None and encoder.whisper.crop_to_audio:
                return encoder.whisper.crop(encoder_out, frames, self.lengths)
            return encoder_out, frames
        rows = []
        lengths = zip(self.lengths.tolist(), self.lengths[:, None], strict=True)
        for samples, (length, of_one) in zip(self.samples, lengths, strict=True):
            rows.append(encoder.encode(samples[None, :length], of_one)[0][0])
        frames = torch.tensor(
            [len(encoder_out) for encoder_out in rows], device=self.samples.device
        )
        return pad_sequence(rows, batch_first=True), frames

    def branch(self) -> AudioBatch:
        """Return a copy with its own caches, which contain all results so far."""
        branch = copy.copy(self)
        branch._features, branch._encoded = dict(self._features), dict(self._encoded)
        return branch

    def _inputs(self, encoder: SpeechEncoder) -> tuple[torch.Tensor, ...]:
        whisper = encoder.whisper
        if whisper is None:
            return self.samples, self.lengths
        whisper.check_lengths(self.lengths)
        kind = whisper.feature_kind
        if kind not in self._features:
            self._features[kind] = whisper.features(self.samples, self.lengths)
        kept = [self._kept_rows(whisper)] if encoder.merged else []
        return *self._features[kind], *kept

    def _kept_rows(self, whisper: HFWhisperEncoder) -> torch.Tensor:
        """Return the mask (U, S) of the rows that are not merged."""
        rows = whisper.whisper.config.max_source_positions
        return kept_rows(whisper.frames_of_speech(self.lengths), rows)


def join_encoded(parts: Sequence[Encoded]) -> Encoded:
    """Join batches; their S may differ, and rows may be merged in some of them only."""
    if len(parts) == 1:
        return parts[0]
    batches, lengths = zip(*parts, strict=True)
    if any(part.dim() > 1 for part in lengths):  # frames per row: (U, S)
        lengths = [
            part if part.dim() > 1 else inside(batch, part)
            for batch, part in zip(batches, lengths, strict=True)
        ]
        lengths = pad_sequence([row.long() for part in lengths for row in part], batch_first=True)
    else:
        lengths = torch.cat(lengths)
    rows = [row for batch in batches for row in batch]
    return pad_sequence(rows, batch_first=True), lengths


@dataclass(frozen=True)
class RecordingFeatures:
    frames: int  # length of the recording in frames of 10 ms
    # (frames + window, num_mel_bins) by kind; a window of padding follows the recording.
    kinds: Mapping[FeatureKind, torch.Tensor]


def recording_features(
    samples: torch.Tensor, encoders: Sequence[HFWhisperEncoder]
) -> RecordingFeatures:
    """Compute the features of a recording (samples,) for each of several encoders."""
    kinds, by_bins = {}, {}
    for encoder in encoders:
        kind, silence = encoder.feature_kind, encoder.window_samples // HOP_SAMPLES
        if kind.num_mel_bins not in by_bins:
            by_bins[kind.num_mel_bins] = encoder.log_mel.recording(samples, silence)
        kinds[kind] = by_bins[kind.num_mel_bins]
    return RecordingFeatures(len(samples) // HOP_SAMPLES, kinds)


class WindowBatch(AudioBatch):
    """U windows of recordings.

    ``window_frames`` is the length of the encoders' window in frames of 10 ms. For encoders that
    pad, the features of shorter windows are padded with zeros, as in openai-whisper. ``together``
    as in ``AudioBatch``.
    """

    def __init__(
        self,
        windows: Sequence[tuple[RecordingFeatures, Window]],
        window_frames: int,
        together: int | None = None,
    ):
        self.together, self._features, self._encoded = together, {}, {}
        self.pauses = [window.pauses for _, window in windows]
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

    def _kept_rows(self, whisper: HFWhisperEncoder) -> torch.Tensor:
        kept = super()._kept_rows(whisper)
        for row, pauses in zip(kept, self.pauses, strict=True):
            for start, end in pauses:
                row[start // whisper.subsampling : end // whisper.subsampling] = False
        return kept

    def select(self, rows: Sequence[int]) -> WindowBatch:
        """Return some of the windows with their cached features and encoder output."""
        chosen, rows = copy.copy(self), [*rows]
        chosen.lengths = self.lengths[rows]
        chosen.pauses = [self.pauses[row] for row in rows]
        chosen._features, chosen._encoded = (
            {key: (part[rows], sizes[rows]) for key, (part, sizes) in table.items()}
            for table in (self._features, self._encoded)
        )
        return chosen
