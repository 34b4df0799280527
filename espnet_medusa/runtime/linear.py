"""Matrix products with weights that were laid out once.

A decoder call multiplies a handful of rows with every weight of the model. On a CPU the time is
that of reading the weights, if the kernel need not lay them out anew in every call: oneDNN's
blocked layout, made once, is what makes eleven rows cost what one costs.
"""

import functools

import torch

from espnet_medusa.runtime.native.library import kernels
from espnet_medusa.runtime.native.linear import NativeLinear
from espnet_medusa.runtime.native.norm import NativeNorm
from espnet_medusa.runtime.precision import Precision, has_bfloat16_instructions

GELU, SILU, RELU = "gelu", "silu", "relu"
ACTIVATIONS = {
    GELU: torch.nn.functional.gelu,
    SILU: torch.nn.functional.silu,
    RELU: torch.nn.functional.relu,
}
FEW_WEIGHTS = 1 << 17  # float32: below, oneDNN's own costs per call outweigh what it saves
INT8_MAX = 127
ZERO_POINT = 128  # of rows: for signed ones oneDNN has nothing fast on a CPU without AMX
TYPICAL_ROWS = 16  # that the layout is made for


class PlainLinear:
    """``activation(x W^T + b) [+ residual]`` as torch computes it.

    Args:
        weight: (M, D).
        bias: (M,) or None.
        activation: A name, or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None):
        self.weight, self.bias = weight.contiguous(), bias
        self.activation = ACTIVATIONS.get(activation)

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """(R, D) to (R, M); ``residual`` (R, M) is added behind the activation."""
        product = torch.nn.functional.linear(hidden, self.weight, self.bias)
        if self.activation is not None:
            product = self.activation(product)
        return product if residual is None else product.add_(residual)


class BlockedLinear:
    """The same through oneDNN, with its blocked weights and fused ends (CPU).

    Args:
        weight: (M, D).
        bias: (M,) or None.
        activation: A name, or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None):
        self.blocked = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)
        self.bias = bias
        self.activation = activation
        self.fused = {None: "none", GELU: "gelu", SILU: "swish", RELU: "relu"}[activation]
        self.algorithm = "none" if activation == GELU else ""  # exact gelu, no tanh

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """(R, D) to (R, M); ``residual`` (R, M) is added behind the activation."""
        if residual is not None and self.activation is None:
            return torch.ops.mkldnn._linear_pointwise.binary(
                hidden, residual, self.blocked, self.bias, "add"
            )
        product = torch.ops.mkldnn._linear_pointwise.default(
            hidden, self.blocked, self.bias, self.fused, [], self.algorithm
        )
        return product if residual is None else product.add_(residual)


class Int8Linear:
    """``x W^T + b`` in 8-bit integers through oneDNN (CPU): half of bfloat16's weights to read.

    Weights have a scale for each output, the input one for all its rows, found in each call.

    Args:
        weight: (M, D).
        bias: (M,) or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        self.bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        self.scales = weight.abs().amax(dim=1).clamp(min=1e-12).float() / largest_weight()
        integers = (weight / self.scales[:, None]).round().to(torch.int8)
        self.blocked = torch.ops.onednn.qlinear_prepack(integers, None)
        self.shifts = zero_points(len(weight))

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, D) to (R, M) in float32."""
        hidden = hidden.float()
        scale = hidden.abs().amax().clamp(min=1e-12) / INT8_MAX
        integers = (hidden / scale).round_().add_(ZERO_POINT).to(torch.uint8)
        return int8_product(integers, scale, self.blocked, self.scales, self.shifts, self.bias)


def int8_product(
    integers: torch.Tensor,
    scale: torch.Tensor,
    blocked: torch.Tensor,
    scales: torch.Tensor,
    shifts: tuple[torch.Tensor, torch.Tensor],
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """(R, D) of ``scale`` by (M, D) of ``scales`` (M,), prepacked, to (R, M) in float32.

    Rows are unsigned, ``ZERO_POINT`` stands for 0.
    """
    return torch.ops.onednn.qlinear_pointwise.tensor(
        *(integers, scale, shifts[0], blocked, scales, shifts[1], bias),
        *(1.0, 0, torch.float32, "none", [], ""),
    )


def zero_points(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Zero points of activations and of (M, D) weights."""
    return torch.tensor(ZERO_POINT), torch.zeros(rows, dtype=torch.long)


@functools.cache
def largest_weight() -> int:
    """Half of what 8 bits hold where oneDNN adds pairs of products in 16 (a CPU without VNNI)."""
    largest = torch.full((16, 16), INT8_MAX, dtype=torch.int8)
    blocked = torch.ops.onednn.qlinear_prepack(largest, None)
    rows = torch.full((16, 16), INT8_MAX + ZERO_POINT, dtype=torch.uint8)
    found = int8_product(rows, torch.tensor(1.0), blocked, torch.ones(16), zero_points(16))
    return INT8_MAX if found[0, 0] == 16 * INT8_MAX**2 else INT8_MAX // 2


Linear = PlainLinear | BlockedLinear | NativeLinear
Projection = Linear | Int8Linear


def has_blocked_layout(dtype: torch.dtype) -> bool:
    """Whether oneDNN takes such weights on this processor: of half precision not on any."""
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
    """Lay weights out for inference.

    Args:
        weight: (M, D).
        bias: (M,) or None.
        precision: What to compute in.
        activation: Behind the product.
    """
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
    """``pack_linear`` of a module's weights."""
    return pack_linear(module.weight, module.bias, precision, activation)


def pack_projection(
    weight: torch.Tensor, precision: Precision, bias: torch.Tensor | None = None
) -> Projection:
    """The vocabulary projection, (V, D), and what some add to it, (V,)."""
    if precision.int8_projection:
        kind = Int8Linear if kernels() is None else NativeLinear
        return kind(weight.detach(), bias)
    return pack_linear(weight, bias, precision)


class Norm:
    """Layer normalization.

    Args:
        module: Its weights.
        dtype: To compute in.
    """

    def __init__(self, module: torch.nn.LayerNorm, dtype: torch.dtype):
        self.weight = module.weight.detach().to(dtype, copy=True)
        self.bias = module.bias.detach().to(dtype, copy=True)
        self.shape, self.eps = module.normalized_shape, module.eps

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """(R, D) to (R, D)."""
        return torch.layer_norm(hidden, self.shape, self.weight, self.bias, self.eps)


def pack_norm(module: torch.nn.LayerNorm, precision: Precision) -> Norm | NativeNorm:
    """Lay a layer normalization out for inference."""
    return NativeNorm(module) if precision.int8_layers else Norm(module, precision.dtype)
