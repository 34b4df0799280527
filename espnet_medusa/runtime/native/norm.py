"""Layer normalization in a kernel of our own (CPU, inference)."""

import torch

from espnet_medusa.runtime.native.library import NormArguments, kernels, pointer


class NativeNorm:
    """Layer normalization.

    Args:
        module: Its weights; copied.
    """

    def __init__(self, module: torch.nn.LayerNorm):
        parts = module.weight, module.bias
        self.parts = [part.detach().to(torch.float32, copy=True) for part in parts]
        self.arguments = NormArguments(*map(pointer, self.parts), module.eps)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, D) to (R, D)."""
        hidden = hidden.float().contiguous()
        normalized = torch.empty_like(hidden)
        kernels().normalize_rows(
            self.arguments, hidden.data_ptr(), *hidden.shape, normalized.data_ptr()
        )
        return normalized
