"""Silero's voice activity network; the package ``silero_vad`` contains its weights.

https://github.com/snakers4/silero-vad (MIT license). Its input is 16 kHz in frames of 32 ms.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.nn.functional import pad

FRAME, CONTEXT = 512, 64  # samples of a frame, and of the audio before it that the network reads
BLOCK = 4096  # frames in memory at once


class Silero:
    """The network's modules, which compute all frames of a block at once.

    ``silero_vad`` itself computes one frame after the other, or runs ONNX in one thread. Its
    ``find_speech`` turns probabilities into spans of speech.
    """

    def __init__(self) -> None:
        num_threads = torch.get_num_threads()
        import silero_vad  # slow; sets torch to one thread

        torch.set_num_threads(num_threads)
        network = silero_vad.load_silero_vad()._model
        self.find_speech = silero_vad.get_speech_timestamps_from_probs
        self.spectrum, self.encoder = network.stft, network.encoder
        self.output = network.decoder.decoder
        cell = network.decoder.rnn.state_dict()
        gates, size = cell["weight_ih"].shape
        self.lstm = torch.nn.LSTM(size, gates // 4)
        self.lstm.load_state_dict({f"{name}_l0": value for name, value in cell.items()})

    @torch.inference_mode()
    def probabilities(self, samples: torch.Tensor) -> torch.Tensor:
        """Return probabilities of speech (frames,) in samples (samples,): float32, 16 kHz."""
        if not len(samples):
            return samples
        samples, blocks, state = pad(samples, (CONTEXT, -len(samples) % FRAME)), [], None
        for frames in samples.unfold(0, CONTEXT + FRAME, FRAME).split(BLOCK):
            encoded = self.encoder(self.spectrum(frames)).permute(0, 2, 1)  # (frames, 1, D)
            hidden, state = self.lstm(encoded, state)
            blocks.append(self.output(hidden.permute(0, 2, 1)).flatten())
        return torch.cat(blocks)


@cache
def load_silero() -> Silero:
    """Load the network once."""
    return Silero()
