"""Whisper's encoder for ESPnet: from a waveform or log-mel features to encoder output."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from espnet2.asr.specaug.specaug import SpecAug
from torch.nn.functional import dropout, gelu
from torch.nn.utils.rnn import pad_sequence

from espnet_medusa.data.encoder_rows import repeat_rows
from espnet_medusa.data.errors import InputError
from espnet_medusa.data.options import build_options, check_choice
from espnet_medusa.networks.masks import padding_mask
from espnet_medusa.networks.merged_padding import drop_equal_frames, window_rows
from espnet_medusa.networks.whisper.log_mel import HOP_SAMPLES, SAMPLE_RATE_HZ, LogMel
from espnet_medusa.networks.whisper.pretrained import ENCODER, build_network
from espnet_medusa.networks.whisper.sizes import ENCODER_SIZES, options_of_config
from espnet_medusa.networks.whisper_modules import WhisperEncoder

WHISPER_WINDOW, AUDIO_WINDOW = WINDOWS = "whisper", "audio"
TAIL_SAMPLES = SAMPLE_RATE_HZ // 2  # padding whose encoder frames still depend on the speech


@dataclass(frozen=True)
class EncoderOptions:
    """``encoder_conf`` of ``encoder: hf_whisper``; sizes are ignored with ``whisper_model``."""

    whisper_model: str | None = None  # hub name, folder, OpenAI .pt file; docs/decode.md
    num_mel_bins: int = 80
    output_size: int = 384
    num_blocks: int = 4
    attention_heads: int = 6
    linear_units: int = 1536
    max_source_positions: int = 1500
    subsampling: int = 2  # log-mel frames per encoder frame: 2 (Whisper) or 4
    dropout_rate: float = 0.0
    # whisper: pad the audio to 30 s; audio: no padding, for models trained without it; None:
    # whisper with whisper_model, else audio.
    window: str | None = None
    crop_to_audio: bool = False  # drop output frames of the padding (for Speech-LLaMA)
    use_specaug: bool = False
    specaug_conf: dict | None = field(default_factory=dict)

    @property
    def window_kind(self) -> str:
        """One of ``WINDOWS``."""
        return self.window or (AUDIO_WINDOW if self.whisper_model is None else WHISPER_WINDOW)


def encoder_options(values: Mapping[str, Any] | None, where: str) -> EncoderOptions:
    """Build options from a mapping; arguments and errors as in ``build_options``."""
    options = build_options(EncoderOptions, values, where)
    if options.window is not None:
        check_choice(options.window, WINDOWS, f"{where}.window")
    check_choice(str(options.subsampling), ["2", "4"], f"{where}.subsampling")
    return options


class FeatureKind(NamedTuple):
    """Properties of the log-mel features that an encoder requires."""

    num_mel_bins: int  # 80, or 128 for large-v3
    window_frames: int  # largest number of frames
    padded: bool  # whether utterances are padded to this number


class HFWhisperEncoder(AbsEncoder):
    """Log-mel features, convolutions and layers; ``options`` are fields of ``EncoderOptions``.

    Unlike transformers' encoder it accepts any length up to the window and masks padding, in
    convolutions and attention: an utterance's result does not depend on its batch. Raise InputError
    for an unknown option or value; ``input_size`` must be 1, which means a waveform in ESPnet.
    """

    def __init__(self, input_size: int = 1, **options):
        super().__init__()
        options = encoder_options(options, "encoder_conf")
        if input_size != 1:
            raise InputError(f"input_size: {input_size}; allowed: 1, with frontend: null")
        self.whisper = build_network(WhisperEncoder, ENCODER, options, ENCODER_SIZES)
        self.whisper.conv1.stride = (options.subsampling // 2,)
        self.log_mel = LogMel(self.whisper.config.num_mel_bins)
        self.specaug = SpecAug(**options.specaug_conf or {}) if options.use_specaug else None
        self.subsampling = options.subsampling
        self.window = options.window_kind
        self.crop_to_audio = options.crop_to_audio

    @property
    def conf(self) -> dict[str, int | str | bool]:
        """Options of ``encoder_conf`` that replace ``whisper_model``."""
        window = {"window": self.window, "crop_to_audio": self.crop_to_audio}
        return options_of_config(self.whisper.config, ENCODER_SIZES) | window

    def output_size(self) -> int:
        return self.whisper.config.d_model

    @property
    def window_samples(self) -> int:
        """Length of the longest audio that the encoder has positions for, in samples."""
        return self.whisper.config.max_source_positions * self.subsampling * HOP_SAMPLES

    @property
    def feature_kind(self) -> FeatureKind:
        return FeatureKind(
            self.whisper.config.num_mel_bins,
            self.window_samples // HOP_SAMPLES,
            padded=self.window == WHISPER_WINDOW,
        )

    def frames_of_speech(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the number of output frames (B,) for ``lengths`` plus TAIL_SAMPLES samples."""
        hop_samples = HOP_SAMPLES * self.subsampling
        return (lengths + TAIL_SAMPLES + hop_samples - 1) // hop_samples

    def unpadded(
        self, encoder_out: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return each utterance's encoder output (S', D), up to ``frames_of_speech``.

        Args:
            encoder_out: (B, S, D) encoder output.
            frames: (B,) its lengths, or (B, S) the frames of merged rows.
            lengths: (B,) samples of the audio.
        """
        rows = zip(encoder_out, frames, self.frames_of_speech(lengths).tolist(), strict=True)
        return [repeat_rows(row, sizes)[:count] for row, sizes, count in rows]

    def features(
        self, samples: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-mel features (B, frames, num_mel_bins) and frames (B,), for ``forward``.

        ``samples`` are (B, samples) in [-1, 1] at 16 kHz, of (B,) lengths.
        """
        kind = self.feature_kind
        features, frames = self.log_mel(samples, lengths, kind.window_frames, kind.padded)
        return features.transpose(1, 2), frames

    def forward(self, xs_pad, ilens, prev_states=None) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Encode a batch; raise InputError if audio exceeds the window or is shorter than a frame.

        Args:
            xs_pad: (B, samples) in [-1, 1], 16 kHz, or (B, frames, num_mel_bins) of ``features``.
                Features include their padding, so ``crop_to_audio`` drops nothing.
            ilens: (B,) samples or frames.

        Returns:
            Encoder output (B, S, D), lengths (B,) and None.
        """
        features, frames = xs_pad, ilens
        if xs_pad.dim() == 2:
            self.check_lengths(ilens)
            features, frames = self.features(xs_pad, ilens)
        if self.specaug is not None and self.training:
            features, _ = self.specaug(features, frames)
        encoder_out, lengths = self.encode(features, frames)
        if self.crop_to_audio and xs_pad.dim() == 2:
            encoder_out, lengths = self.crop(encoder_out, lengths, ilens)
        return encoder_out, lengths, None

    def crop(
        self, encoder_out: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoder output (B, S', D) of the audio, and its frames (B,).

        Arguments are those of ``unpadded``, whose rows also contain the frames after the audio that
        are computed from its last samples.
        """
        counts = lengths // HOP_SAMPLES
        for convolution in (self.whisper.conv1, self.whisper.conv2):
            counts = (counts - 1) // convolution.stride[0] + 1
        if frames.dim() == 2:  # merged
            rows = [
                row.repeat_interleave(one, dim=0)
                for row, one in zip(encoder_out, frames, strict=True)
            ]
            encoder_out = pad_sequence(rows, batch_first=True)
        return encoder_out[:, : counts.max()], counts

    def encode(
        self, features: torch.Tensor, frames: torch.Tensor | None, kept: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Encode features (B, T, bins) of (B,) frames; None: all T, without waiting for a GPU.

        Rows that are False in ``kept`` (B, S) are merged. Return encoder output (B, S, D) and its
        (B,) frames (None if ``frames`` is None), or the frames (B, S) of merged rows.
        """
        hidden, lengths = self._stem(features, frames, kept)
        return self.whisper.layer_norm(self._run_layers(hidden, lengths)), lengths

    def _run_layers(self, hidden: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        mask = None if lengths is None else padding_mask(hidden, lengths)
        if mask is not None:
            mask = mask.expand(-1, 1, hidden.size(1), -1)
        for layer in self.whisper.layers:
            hidden = layer(hidden, mask)
        return hidden

    def release(self) -> None:
        """Free the memory of all weights; runtimes have copies, and features need no weights."""
        for weight in self.whisper.parameters():
            weight.data = weight.new_empty(0)

    def check_lengths(self, lengths: torch.Tensor) -> None:
        """Raise InputError if a length (B,), in samples, exceeds the window or is below a frame."""
        longest, shortest = int(lengths.max()), int(lengths.min())
        if longest > self.window_samples:
            raise InputError(
                f"audio of {longest / SAMPLE_RATE_HZ:.2f} s is longer than the model's window of "
                f"{self.window_samples / SAMPLE_RATE_HZ:.2f} s; cut it into segments, or call "
                "Speech2Text.transcribe, which decodes audio of any length"
            )
        if shortest < HOP_SAMPLES:
            raise InputError(f"audio of {shortest} samples; allowed: {HOP_SAMPLES} or more")

    def _stem(
        self, features: torch.Tensor, frames: torch.Tensor | None, kept: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Apply both convolutions, with zeros in padding after each, and add positions.

        With ``kept``, rows are merged, and the output for equal padded frames is computed once.
        """
        lengths, copies = frames, 0
        if kept is not None:
            features, lengths, copies = drop_equal_frames(features, frames, self.subsampling)
        hidden = features.transpose(1, 2).to(self.whisper.conv1.weight.dtype)
        for convolution in (self.whisper.conv1, self.whisper.conv2):
            hidden = gelu(convolution(hidden))
            if lengths is not None:
                lengths = (lengths - 1) // convolution.stride[0] + 1
                inside = torch.arange(hidden.size(2), device=hidden.device) < lengths[:, None]
                hidden = hidden.masked_fill(~inside[:, None, :], 0.0)
        positions = self.whisper.embed_positions.weight
        hidden, lengths = window_rows(hidden.transpose(1, 2), lengths, copies, positions, kept)
        return dropout(hidden, self.whisper.config.dropout, self.whisper.training), lengths
