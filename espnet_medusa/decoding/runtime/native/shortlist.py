"""The low-rank approximation of a projection that selects columns for exact logits."""

import math

import torch

from espnet_medusa.decoding.runtime.native.library import ShortlistArguments
from espnet_medusa.decoding.runtime.native.operations import COLUMNS, DEPTH_BYTES, NativeLinear

RANK = 0.25  # as a share of the hidden size
PANELS = 12  # panels of columns with exact logits, per row
LEAST_COLUMNS = 8 * PANELS * COLUMNS  # a smaller projection is fast without a shortlist
ROWS = 4096  # about so many rows of the projection determine the approximation
PRIOR = 0.02  # share of uncorrelated values in the second moments
BITS = 4  # of the weights that are read for all columns


class Shortlist:
    """A low-rank approximation of the projection, which selects the columns with exact logits.

    The projection W reads the output x of a layer normalization with weights g and bias b. The
    second moments of x - b are L L^T, a Cholesky decomposition. V has the first r right singular
    vectors of W L. Then W L V V^T L^-1 (x - b) + W b is the best approximation of W x of rank r
    (Eckart and Young, 1936).

    Args:
        projection: W, from the hidden size D to V' columns.
        norm: Before the projection, (R, D) to (R, D).
        moments: (D, D) ``AttendingHeads.moments``; if all are zero, values are assumed to be
            uncorrelated.
    """

    def __init__(self, projection: NativeLinear, norm: torch.nn.LayerNorm, moments: torch.Tensor):
        weight = projection.rows(torch.arange(projection.outputs))
        weight -= weight.mean(dim=0)  # the ranking of columns remains
        gains, offset = (part.detach().float() for part in (norm.weight, norm.bias))
        gains = gains.abs().clamp(min=1e-3 * float(gains.abs().max()))
        expected, moments = torch.diag(gains**2), moments.float()
        if total := float(moments.trace()):
            expected *= PRIOR / (1 - PRIOR) * total / float(expected.trace())
        factor = torch.linalg.cholesky(moments + expected)
        rank = min(math.ceil(RANK * len(gains) / DEPTH_BYTES) * DEPTH_BYTES, len(gains))
        some = weight[:: max(len(weight) // ROWS, 1)] @ factor
        vectors = torch.linalg.eigh(some.T @ some).eigenvectors[:, -rank:]
        # Rotated, so that a row's reduced numbers, which share a scale, have similar sizes.
        generator = torch.Generator().manual_seed(0)
        vectors = vectors @ torch.linalg.qr(torch.randn(rank, rank, generator=generator)).Q
        reduce = torch.linalg.solve_triangular(factor.T, vectors, upper=True).T
        scores = weight @ (factor @ vectors)
        bias = weight @ offset - scores @ (reduce @ offset)
        if projection.bias is not None:
            bias += projection.bias
        self.reduce, self.scores = NativeLinear(reduce, None), NativeLinear(scores, bias, bits=BITS)
        self.arguments = ShortlistArguments(self.reduce.arguments, self.scores.arguments, PANELS)
