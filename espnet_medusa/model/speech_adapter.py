"""From encoder frames to a language model's input: frame stacking and a linear layer."""

import torch

from espnet_medusa.model.masks import inside


class SpeechAdapter(torch.nn.Module):
    """Every few frames become one speech embedding (Fathullah et al., arXiv 2307.11795).

    Args:
        encoder_size: Of a frame.
        hidden_size: D of the language model.
        stacked_frames: Frames of an embedding.
    """

    def __init__(self, encoder_size: int, hidden_size: int, stacked_frames: int):
        super().__init__()
        self.stacked_frames = stacked_frames
        self.linear = torch.nn.Linear(stacked_frames * encoder_size, hidden_size)

    def lengths(self, frames):
        """Embeddings of so many frames; a last one is filled with zeros."""
        return (frames + self.stacked_frames - 1) // self.stacked_frames

    def stack(self, memory: torch.Tensor, memory_lengths: torch.Tensor) -> torch.Tensor:
        """(B, S, encoder_size) to (B, S', stacked_frames * encoder_size), zeros behind the end."""
        memory = memory.masked_fill(~inside(memory, memory_lengths)[:, :, None], 0.0)
        missing = -memory.size(1) % self.stacked_frames
        memory = torch.nn.functional.pad(memory, (0, 0, 0, missing))
        return memory.unflatten(1, (-1, self.stacked_frames)).flatten(2)

    def forward(
        self, memory: torch.Tensor, memory_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, S, encoder_size) and (B,) frames to (B, S', D) and (B,) embeddings."""
        return self.linear(self.stack(memory, memory_lengths)), self.lengths(memory_lengths)
