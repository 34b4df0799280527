"""Matrix products whose weights are packed once for inference.

A decoder call multiplies a few rows with every weight of the model. On a CPU it takes as long as
reading the weights, if their layout suits the kernel. With oneDNN's blocked layout, eleven
rows are as fast as one.
"""

import functools
from collections.abc import Callable

import torch

from espnet_medusa.decoding.runtime.native.library import kernels
from espnet_medusa.decoding.runtime.native.operations import NativeLinear, NativeNorm
from espnet_medusa.decoding.runtime.precision import Precision, has_bfloat16_instructions

GELU, SILU, RELU = "gelu", "silu", "relu"
ACTIVATIONS = {
    GELU: torch.nn.functional.gelu,
    SILU: torch.nn.functional.silu,
    RELU: torch.nn.functional.relu,
}
FEW_WEIGHTS = 1 << 17  # float32: oneDNN's cost per call exceeds its gain for fewer weights
INT8_MAX = 127
ZERO_POINT = 128  # of activations: oneDNN is slow for signed ones on a CPU without AMX
TYPICAL_ROWS = 16  # number of rows for which oneDNN chooses the layout


class PlainLinear:
    """``activation(x W^T + b) [+ residual]`` with torch's kernels; weight (M, D), bias (M,)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None):
        self.weight, self.bias = weight.contiguous(), bias
        self.activation = ACTIVATIONS.get(activation)

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Map (R, D) to (R, M); add ``residual`` (R, M) after the activation."""
        product = torch.nn.functional.linear(hidden, self.weight, self.bias)
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


class Int8Linear:
    """``x W^T + b`` in 8-bit integers with oneDNN (CPU), half the bytes of bfloat16 weights.

    Each output has one scale. All rows of an input share one, computed per call. ``largest`` is
    the largest integer of the weights; None: ``largest_weight``.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, largest: int | None = None
    ):
        self.bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        weight, largest = weight.detach(), largest or largest_weight()
        self.scales = weight.abs().amax(dim=1).clamp(min=1e-12).float() / largest
        integers = (weight / self.scales[:, None]).round().to(torch.int8)
        self.blocked = torch.ops.onednn.qlinear_prepack(integers, None)
        self.zero_point = torch.tensor(ZERO_POINT)
        self.weight_zero_points = torch.zeros(len(weight), dtype=torch.long)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (R, D) to (R, M) in float32."""
        hidden = hidden.float()
        scale = hidden.abs().amax().clamp(min=1e-12) / INT8_MAX
        integers = (hidden / scale).round_().add_(ZERO_POINT).to(torch.uint8)
        return torch.ops.onednn.qlinear_pointwise.tensor(
            *(integers, scale, self.zero_point),
            *(self.blocked, self.scales, self.weight_zero_points, self.bias),
            *(1.0, 0, torch.float32, "none", [], ""),
        )


@functools.cache
def largest_weight() -> int:
    """Return 127, or 63 where oneDNN adds pairs of products in 16 bits (a CPU without VNNI)."""
    rows = torch.full((16, 16), INT8_MAX, dtype=torch.float32)  # their scale is 1
    product = Int8Linear(rows, largest=INT8_MAX)(rows)
    return INT8_MAX if product[0, 0] == 16 * INT8_MAX**2 else INT8_MAX // 2


Linear = PlainLinear | BlockedLinear | NativeLinear
Projection = Linear | Int8Linear


def has_blocked_layout(dtype: torch.dtype) -> bool:
    """Return whether oneDNN has a blocked layout of this dtype on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return dtype == torch.float32 or (dtype == torch.bfloat16 and has_bfloat16_instructions())


def pack_linear(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    precision: Precision,
    activation: str | None = None,
) -> Linear:
    """Pack a copy of weights (M, D) and bias (M,) in the fastest layout of this device."""
    if precision.int8_layers:
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


def pack_projection(
    weight: torch.Tensor, precision: Precision, bias: torch.Tensor | None = None
) -> Projection:
    """Pack a vocabulary projection (V, D) and its bias (V,)."""
    if precision.int8_projection:
        return (Int8Linear if kernels() is None else NativeLinear)(weight, bias)
    return pack_linear(weight, bias, precision)


Norm = Callable[[torch.Tensor], torch.Tensor]


def pack_norm(module: torch.nn.LayerNorm, precision: Precision) -> Norm:
    """Return a layer normalization (R, D) to (R, D) with a copy of the module's weights."""
    if precision.int8_layers:
        return NativeNorm(module)
    weights = [one.detach().to(precision.dtype, copy=True) for one in (module.weight, module.bias)]
    shape, epsilon = module.normalized_shape, module.eps
    return lambda hidden: torch.layer_norm(hidden, shape, *weights, epsilon)
