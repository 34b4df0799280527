"""The convolutions before Whisper's encoder layers, in kernels of our own (CPU, inference)."""

from __future__ import annotations

import torch
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from espnet_medusa.runtime.linear import GELU
from espnet_medusa.runtime.native.linear import NativeLinear, NativeRoundedLinear, multiply_rows

Linear = type[NativeLinear] | type[NativeRoundedLinear]
RECEPTIVE_FRAMES = 12  # more than a row of the stem hears, at every subsampling


class NativeConvolution:
    """A convolution over time with GELU as a matrix product: overlapping rows, nothing is copied.

    Args:
        module: Its weights; copied. Padded as wide as half its kernel.
        kind: Of the product.
    """

    def __init__(self, module: torch.nn.Conv1d, kind: Linear):
        weight = module.weight.transpose(1, 2).flatten(1)  # (outputs, kernel * inputs)
        self.product = kind(weight, module.bias, GELU)
        self.stride, self.padding = module.stride[0], module.padding[0]
        self.kernel_size = module.kernel_size[0]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T', M), T' as the module's."""
        size = hidden.size(-1)
        padded = torch.nn.functional.pad(hidden, (0, 0, self.padding, self.padding)).contiguous()
        frames = (padded.size(1) - self.kernel_size) // self.stride + 1
        rows = (frames, self.kernel_size * size), (self.stride * size, 1)
        return torch.stack([multiply_rows(self.product, one.as_strided(*rows)) for one in padded])


class NativeStem:
    """Two convolutions, then positions.

    Silence gives the same row again and again, which is computed once: what fills Whisper's window
    behind the audio costs nothing here, and every number stays as it is.

    Args:
        whisper: The trained module; copied.
        kind: Of the products.
    """

    def __init__(self, whisper: WhisperEncoder, kind: Linear):
        self.convolutions = [
            NativeConvolution(module, kind) for module in (whisper.conv1, whisper.conv2)
        ]
        self.subsampling = self.convolutions[0].stride * self.convolutions[1].stride
        self.positions = whisper.embed_positions.weight.detach().to(torch.float32, copy=True)

    def __call__(
        self, features: torch.Tensor, frames: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (B, T, bins) and frames (B,) to hidden (B, S, D) and its frames (B,)."""
        features, again = features.float(), 0
        if int(frames.min()) == features.size(1):
            again = max(silent_frames(features) - RECEPTIVE_FRAMES, 0) // self.subsampling
        left_out = again * self.subsampling
        hidden = features[:, : features.size(1) - left_out]
        hidden, lengths = self._convolve(hidden, frames - left_out)
        if again:
            # The last row hears the window's end, the one before silence alone.
            silence = hidden[:, -2:-1].expand(-1, again, -1)
            hidden = torch.cat([hidden[:, :-1], silence, hidden[:, -1:]], dim=1)
        hidden += self.positions[: hidden.size(1)]
        return hidden, lengths + again

    def _convolve(
        self, hidden: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for convolution in self.convolutions:
            hidden = convolution(hidden)
            lengths = torch.div(lengths - 1, convolution.stride, rounding_mode="floor") + 1
            if int(lengths.min()) < hidden.size(1):
                behind = torch.arange(hidden.size(1)) >= lengths[:, None]
                hidden.masked_fill_(behind[:, :, None], 0.0)
        return hidden, lengths


def silent_frames(features: torch.Tensor) -> int:
    """Frames at the end of (B, T, bins) that are the last again, in all utterances."""
    differs = (features != features[:, -1:]).any(dim=2).any(dim=0)
    return features.size(1) - int((differs * torch.arange(1, len(differs) + 1)).max())
