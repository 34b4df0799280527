"""The low-rank approximation of a projection that selects columns for exact logits."""

import math

import torch

from espnet_medusa.runtime.native.library import ShortlistArguments
from espnet_medusa.runtime.native.operations import COLUMNS, DEPTH_BYTES, NativeLinear

RANK = 0.375  # as a share of the hidden size
PANELS = 32  # panels of columns with exact logits, per row
LEAST_COLUMNS = 4 * PANELS * COLUMNS  # a smaller projection is fast without a shortlist
ROWS = 4096  # about so many rows of the projection determine the approximation


class Shortlist:
    """A low-rank approximation of the projection, which selects the columns with exact logits.

    The projection W reads the output x of a layer normalization with weights g and bias b. V has
    the first r right singular vectors of W diag(g). Then W diag(g) V V^T diag(1 / g) (x - b) + W b
    is the best approximation of W x of rank r (Eckart and Young, 1936), if normalized values are
    uncorrelated.

    Args:
        projection: W, from the hidden size D to V' columns.
        norm: Before the projection, (R, D) to (R, D).
    """

    def __init__(self, projection: NativeLinear, norm: torch.nn.LayerNorm):
        weight = projection.rows(torch.arange(projection.outputs))
        gains, offset = (part.detach().float() for part in (norm.weight, norm.bias))
        gains = gains.abs().clamp(min=1e-3 * float(gains.abs().max()))
        rank = min(math.ceil(RANK * len(gains) / DEPTH_BYTES) * DEPTH_BYTES, len(gains))
        some = weight[:: max(len(weight) // ROWS, 1)] * gains
        vectors = torch.linalg.eigh(some.T @ some).eigenvectors[:, -rank:]
        # Rotated, so that a row's reduced numbers, which share a scale, have similar sizes.
        generator = torch.Generator().manual_seed(0)
        vectors = vectors @ torch.linalg.qr(torch.randn(rank, rank, generator=generator)).Q
        reduce, scores = (vectors / gains[:, None]).T, weight @ (gains[:, None] * vectors)
        bias = weight @ offset - scores @ (reduce @ offset)
        if projection.bias is not None:
            bias += projection.bias
        self.reduce, self.scores = NativeLinear(reduce, None), NativeLinear(scores, bias)
        self.arguments = ShortlistArguments(self.reduce.arguments, self.scores.arguments, PANELS)


def build_shortlist(projection: NativeLinear, norm: torch.nn.LayerNorm) -> Shortlist | None:
    """Return the shortlist of a projection, or None if it has few columns."""
    return Shortlist(projection, norm) if projection.outputs >= LEAST_COLUMNS else None
