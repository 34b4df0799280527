"""Matrix products in 8-bit integers, in a kernel of our own (CPU, inference)."""

import torch

from espnet_medusa.runtime.native.library import ACTIVATIONS, LinearArguments, kernels, pointer

COLUMNS, DEPTH_BYTES = 32, 64  # that the layout rounds up to


class NativeLinear:
    """``activation(x W^T + b) [+ residual]``, the product in 8-bit integers, all else in float32.

    Weights have a scale for each output, rows one each, found in every call: a row's result does
    not depend on the rows beside it. Rounding costs some 1 % of the result's norm.

    Args:
        weight: (M, D).
        bias: (M,) or None.
        activation: A name, or None.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None = None
    ):
        weight = weight.detach().float().contiguous()
        outputs, inputs = weight.shape
        self.blocks = empty_blocks(outputs, inputs, torch.int8)
        self.scales = torch.empty(outputs)
        self.corrections = torch.empty(outputs, dtype=torch.int32)
        self.bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        self.outputs = outputs
        packed = [pointer(part) for part in (self.blocks, self.scales, self.corrections)]
        threads = torch.get_num_threads()
        kernels().pack_weights(weight.data_ptr(), outputs, inputs, *packed, threads)
        self.arguments = LinearArguments(
            outputs, inputs, *packed, pointer(self.bias), ACTIVATIONS[activation]
        )

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """(R, D) to (R, M) in float32; ``residual`` (R, M) is added behind the activation."""
        hidden = hidden.float().contiguous()
        residual = None if residual is None else residual.float().contiguous()
        product = hidden.new_empty(len(hidden), self.outputs)
        kernels().linear(
            *(self.arguments, hidden.data_ptr(), len(hidden), pointer(residual)),
            *(product.data_ptr(), torch.get_num_threads()),
        )
        return product

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """Weights (R, D) of these outputs (R,) as the product has them."""
        outputs = outputs.contiguous()
        weights = torch.empty(len(outputs), self.arguments.inputs)
        kernels().unpack_weights(
            *(self.arguments, outputs.data_ptr(), len(outputs), weights.data_ptr()),
            torch.get_num_threads(),
        )
        return weights


class NativeRoundedLinear:
    """``activation(x W^T + b)``, the product in bfloat16, all else in float32.

    Args:
        weight: (M, D).
        bias: (M,) or None.
        activation: A name, or None.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None = None
    ):
        weight = weight.detach().float().contiguous()
        outputs, inputs = weight.shape
        self.blocks = empty_blocks(outputs, inputs, torch.bfloat16)
        self.bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        kernels().pack_rounded_weights(
            weight.data_ptr(), outputs, inputs, pointer(self.blocks), torch.get_num_threads()
        )
        self.arguments = LinearArguments(
            *(outputs, inputs, pointer(self.blocks), None, None),
            *(pointer(self.bias), ACTIVATIONS[activation]),
        )


def multiply_rows(linear: NativeLinear | NativeRoundedLinear, rows: torch.Tensor) -> torch.Tensor:
    """Many rows (R, D), of any distance, to (R, M) in float32; each thread takes blocks of them."""
    arguments = linear.arguments
    product = rows.new_empty(len(rows), arguments.outputs)
    kernels().multiply_blocks(
        *(arguments, rows.data_ptr(), rows.stride(0), len(rows)),
        *(product.data_ptr(), torch.get_num_threads()),
    )
    return product


def empty_blocks(outputs: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Room for weights (outputs, inputs) in the kernels' layout, zeros."""
    depth = DEPTH_BYTES // dtype.itemsize
    size = -(-outputs // COLUMNS) * COLUMNS * (-(-inputs // depth) * depth)
    return torch.zeros(size, dtype=dtype)
