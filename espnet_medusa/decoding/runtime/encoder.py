"""Runtime of Whisper's encoder in other precisions than the module's."""

import copy
from collections.abc import Callable

import torch

from espnet_medusa.decoding.runtime.graph import GraphMemory, Replayed
from espnet_medusa.decoding.runtime.native.operations import NativeBfloat16Linear, NativeLinear
from espnet_medusa.decoding.runtime.native_encoder import NativeEncoder
from espnet_medusa.decoding.runtime.precision import INT8, encoder_precision
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

# Parameters and results are those of ``HFWhisperEncoder.encode``.
EncoderRuntime = Callable[..., tuple[torch.Tensor, torch.Tensor]]
FEW_UTTERANCES = 2


class CastEncoder:
    """A copy of the encoder in ``dtype``; its output has the original dtype."""

    def __init__(self, encoder: HFWhisperEncoder, dtype: torch.dtype):
        self.output_dtype = encoder.whisper.conv1.weight.dtype
        self.encoder = copy.deepcopy(encoder).to(dtype).eval()

    def __call__(self, features, frames, kept=None) -> tuple[torch.Tensor, torch.Tensor]:
        encoder_out, lengths = self.encoder.encode(features, frames, kept)
        return encoder_out.to(self.output_dtype), lengths


class GraphEncoder(CastEncoder):
    """A ``CastEncoder`` on a GPU; whole windows of few utterances are CUDA graphs.

    For base, launching their kernels takes longer than running them.
    """

    def __init__(self, encoder: HFWhisperEncoder, dtype: torch.dtype):
        super().__init__(encoder, dtype)
        self.memory = GraphMemory()
        # By the features' shape (U, T, bins): features of fixed address, and the graph.
        self.calls: dict[torch.Size, tuple[torch.Tensor, Replayed]] = {}

    def __call__(self, features, frames, kept=None):
        whole = self.encoder.feature_kind.padded and kept is None
        if not whole or len(features) > FEW_UTTERANCES:
            return super().__call__(features, frames, kept)
        with self.memory.lock:
            if features.shape not in self.calls:
                replayed = Replayed(self.memory, features.device)
                self.calls[features.shape] = torch.empty_like(features), replayed
            fixed, replayed = self.calls[features.shape]
            fixed.copy_(features)
            encoder_out, _ = replayed.run(lambda: self.encoder.encode(fixed, None))
            encoder_out = encoder_out.to(self.output_dtype, copy=True)
        return encoder_out, torch.full_like(frames, encoder_out.size(1))


def build_encoder_runtime(
    encoder: HFWhisperEncoder, precision: str | None
) -> EncoderRuntime | None:
    """Return the encoder with a copy of its weights in ``encoder_precision``.

    Return None if the module has this precision. Raise InputError if the device does not support
    it.
    """
    weight = encoder.whisper.conv1.weight
    if precision is None:
        return None
    chosen = encoder_precision(precision, weight.device)
    if chosen.kernels:
        linear = NativeLinear if chosen.kernels == INT8 else NativeBfloat16Linear
        return NativeEncoder(encoder.whisper, linear)
    if chosen.dtype == weight.dtype:
        return None
    return (GraphEncoder if weight.is_cuda else CastEncoder)(encoder, chosen.dtype)
