"""Whisper's log-mel spectrogram for batches; each utterance is independent of the others."""

import torch
from torch.nn.functional import pad
from transformers import WhisperFeatureExtractor

SAMPLE_RATE_HZ = 16000
FFT_SAMPLES = 400
HOP_SAMPLES = 160
BLOCK_FRAMES = 6000
LEAST_FRAMES = 16  # matrix products of fewer columns may round differently
SILENCE = -10.0  # the smallest logarithm, of frames without any sound


class LogMel(torch.nn.Module):
    """Log-mel features equal to ``transformers.WhisperFeatureExtractor``'s.

    Samples after the end of an utterance are set to 0. The dynamic range is limited relative to the
    maximum over the utterance's frames. So features do not depend on the batch.
    """

    def __init__(self, num_mel_bins: int = 80):
        super().__init__()
        filters = WhisperFeatureExtractor(feature_size=num_mel_bins).mel_filters
        self.register_buffer("filters", torch.from_numpy(filters).float().T, persistent=False)
        self.register_buffer("window", torch.hann_window(FFT_SAMPLES), persistent=False)

    def forward(
        self, samples: torch.Tensor, lengths: torch.Tensor, window_frames: int, padded: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute features (B, num_mel_bins, frames) and frames (B,); zero after these.

        Args:
            samples: (B, samples) in [-1, 1], 16 kHz.
            lengths: (B,) samples.
            window_frames: Maximum number of frames; 3000 for Whisper's 30 s.
            padded: Pad every utterance with silence to ``window_frames``.
        """
        positions = torch.arange(samples.size(1), device=samples.device)
        samples = samples.float().masked_fill(positions >= lengths[:, None], 0.0)
        frames = torch.full_like(lengths, window_frames) if padded else lengths // HOP_SAMPLES
        longest = int(frames.max())
        count = min(longest, _frames_with_sound(samples.size(1)))
        # stft pads by reflection: it reflects the zeros of the tail, or the end of a full window.
        tail = 0 if count == window_frames else FFT_SAMPLES
        # A negative pad removes the samples of an incomplete frame.
        samples = pad(samples, (0, count * HOP_SAMPLES + tail - samples.size(1)))
        log_mel = pad(self._log_mel(samples, count), (0, longest - count), value=SILENCE)
        if padded:
            return _normalized(log_mel, log_mel.amax(dim=(1, 2), keepdim=True)), frames
        outside = torch.arange(longest, device=samples.device) >= frames[:, None, None]
        peak = log_mel.masked_fill(outside, -torch.inf).amax(dim=(1, 2), keepdim=True)
        return _normalized(log_mel, peak).masked_fill(outside, 0.0), frames

    def recording(self, samples: torch.Tensor, silence_frames: int) -> torch.Tensor:
        """Compute (frames, num_mel_bins) of audio of any length, as openai-whisper does.

        The dynamic range is limited relative to the maximum over all of the audio.

        Args:
            samples: (samples,) in [-1, 1], 16 kHz.
            silence_frames: Frames of silence to append.
        """
        frames, margin = len(samples) // HOP_SAMPLES + silence_frames, FFT_SAMPLES // 2
        with_sound = min(frames, _frames_with_sound(len(samples)))
        samples = pad(samples.float(), (0, 2 * FFT_SAMPLES + LEAST_FRAMES * HOP_SAMPLES))
        samples = torch.cat([samples[1 : margin + 1].flip(0), samples])
        parts = []
        for first in range(0, with_sound, BLOCK_FRAMES):  # to limit the memory for spectra
            count = min(BLOCK_FRAMES, with_sound - first)
            begin, size = first * HOP_SAMPLES, (count - 1) * HOP_SAMPLES + FFT_SAMPLES
            parts.append(self._log_mel(samples[begin : begin + size], count, center=False).t())
        log_mel = pad(torch.cat(parts), (0, 0, 0, frames - with_sound), value=SILENCE)
        return _normalized(log_mel, log_mel.max())

    def _log_mel(self, samples: torch.Tensor, frames: int, center: bool = True) -> torch.Tensor:
        """Convert (..., samples) to (..., num_mel_bins, frames) with full dynamic range."""
        options = {"window": self.window.float(), "center": center, "return_complex": True}
        spectrum = torch.stft(samples, FFT_SAMPLES, HOP_SAMPLES, **options)
        power = spectrum[..., :frames].abs().square()
        return (self.filters.float() @ power).clamp(min=1e-10).log10()


def _frames_with_sound(samples: int) -> int:
    """Return the number of frames that contain one of the first ``samples``, or a few more."""
    return max(-(-(samples + FFT_SAMPLES // 2) // HOP_SAMPLES), LEAST_FRAMES)


def _normalized(log_mel: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
    return torch.maximum(log_mel, peak - 8.0).add_(4.0).div_(4.0)
