"""Matrix products whose weights are packed once for inference.

A decoder call multiplies a few rows with every weight of the model. On a CPU it takes as long as
reading the weights, if their layout suits the kernel. With oneDNN's blocked layout, eleven
rows are as fast as one.
"""

from collections.abc import Callable

import torch

from espnet_medusa.decoding.runtime.native.operations import NativeLinear, NativeNorm
from espnet_medusa.decoding.runtime.precision import Precision, has_blocked_layout

GELU, SILU, RELU = "gelu", "silu", "relu"
ACTIVATIONS = {
    GELU: torch.nn.functional.gelu,
    SILU: torch.nn.functional.silu,
    RELU: torch.nn.functional.relu,
}
FEW_WEIGHTS = 1 << 17  # float32: oneDNN's cost per call exceeds its gain for fewer weights
TYPICAL_ROWS = 16  # number of rows for which oneDNN chooses the layout


class PlainLinear:
    """``activation(x W^T + b) [+ residual]`` with torch's kernels; weight (M, D), bias (M,).

    The same as ``torch.nn.functional.linear``, with fewer operations on the host.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None):
        self.columns, self.bias = weight.contiguous().t(), bias
        self.activation = ACTIVATIONS.get(activation)

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Map (R, D) to (R, M); add ``residual`` (R, M) after the activation."""
        if self.bias is None:
            product = hidden.mm(self.columns)
        else:
            product = torch.addmm(self.bias, hidden, self.columns)
        if self.activation is not None:
            product = self.activation(product)
        return product if residual is None else product.add_(residual)


class BlockedLinear:
    """``PlainLinear`` with oneDNN's blocked weights and fused activations (CPU)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None):
        self.blocked = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)
        self.bias, self.activation = bias, activation
        self.fused = {None: "none", GELU: "gelu", SILU: "swish", RELU: "relu"}[activation]
        self.algorithm = "none" if activation == GELU else ""  # exact GELU, no tanh

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Map (R, D) to (R, M); add ``residual`` (R, M) after the activation."""
        if residual is not None and self.activation is None:
            return torch.ops.mkldnn._linear_pointwise.binary(
                hidden, residual, self.blocked, self.bias, "add"
            )
        product = torch.ops.mkldnn._linear_pointwise.default(
            hidden, self.blocked, self.bias, self.fused, [], self.algorithm
        )
        return product if residual is None else product.add_(residual)


Linear = PlainLinear | BlockedLinear | NativeLinear


def pack_linear(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    precision: Precision,
    activation: str | None = None,
) -> Linear:
    """Pack a copy of weights (M, D) and bias (M,) in the fastest layout of this device."""
    if precision.kernels:
        return NativeLinear(weight, bias, activation)
    dtype = precision.dtype
    weight = weight.detach().to(dtype, copy=True)
    bias = None if bias is None else bias.detach().to(dtype, copy=True)
    few = dtype == torch.float32 and weight.numel() < FEW_WEIGHTS
    blocked = weight.device.type == "cpu" and has_blocked_layout(dtype) and not few
    return (BlockedLinear if blocked else PlainLinear)(weight, bias, activation)


def pack_module(
    module: torch.nn.Linear, precision: Precision, activation: str | None = None
) -> Linear:
    return pack_linear(module.weight, module.bias, precision, activation)


Norm = Callable[[torch.Tensor], torch.Tensor]


def pack_norm(module: torch.nn.LayerNorm, precision: Precision) -> Norm:
    """Return a layer normalization (R, D) to (R, D) with a copy of the module's weights."""
    if precision.kernels:
        return NativeNorm(module)
    weights = [one.detach().to(precision.dtype, copy=True) for one in (module.weight, module.bias)]
    shape, epsilon = module.normalized_shape, module.eps
    return lambda hidden: torch.layer_norm(hidden, shape, *weights, epsilon)
