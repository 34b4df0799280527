"""Matrix products, layer normalization and best tokens with the native kernels."""

import torch

from espnet_medusa.data.files.mapped_weights import page_out
from espnet_medusa.decoding.runtime.native.library import (
    ACTIVATIONS,
    LinearArguments,
    NormArguments,
    RestrictionArguments,
    address,
    call_kernel,
    run_kernel,
)
from espnet_medusa.decoding.tree.best_tokens import (
    BestTokens,
    Restriction,
    TopTokens,
    best_tokens,
    top_tokens,
)

COLUMNS, DEPTH_BYTES = 32, 64  # PANEL and STEP_BYTES in panel.h
# Rows of a weight that are packed together, so that few pages of a mapped weight are in memory.
ROWS_TOGETHER = 128 * COLUMNS


class NativeLinear:
    """``activation(x W^T + b) [+ residual]``: an integer product, the rest in float32.

    The weight is (M, D), the bias (M,). Each output has one scale, and each input row has its own,
    so that results do not depend on other rows. Rounding changes them by about 1 % of their norm,
    with weights of 4 ``bits`` instead of 8 by about 12 %.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: str | None = None,
        bits: int = 8,
    ):
        outputs, inputs = weight.shape
        self.blocks = empty_blocks(outputs, inputs, bits)
        self.scales = torch.empty(outputs, dtype=torch.float32)
        self.corrections = torch.empty(outputs, dtype=torch.int32)
        self.bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        self.outputs = outputs
        packed = self.blocks, self.scales, self.corrections
        parts = map(address, (*packed, self.bias))
        self.arguments = LinearArguments(outputs, inputs, bits, *parts, ACTIVATIONS[activation])
        for first in range(0, outputs, ROWS_TOGETHER):
            rows = slice(first, first + ROWS_TOGETHER)
            part = weight.detach()[rows].float().contiguous()
            places = (tensor[first:] for tensor in packed)
            run_kernel("pack_weights", part, *part.shape, bits, *places)
            page_out(weight, rows)

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Map (R, D) to (R, M) in float32; add ``residual`` (R, M) after the activation."""
        hidden = hidden.float().contiguous()
        residual = None if residual is None else residual.float().contiguous()
        product = hidden.new_empty(len(hidden), self.outputs)
        run_kernel("linear", self.arguments, hidden, len(hidden), residual, product)
        return product

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the dequantized weights (R, D) of outputs (R,); they must have 8 bits."""
        outputs = outputs.contiguous()
        weights = torch.empty(len(outputs), self.arguments.inputs, dtype=torch.float32)
        run_kernel("unpack_weights", self.arguments, outputs, len(outputs), weights)
        return weights


class NativeBfloat16Linear:
    """``activation(x W^T + b)`` for ``multiply_rows``: a bfloat16 product, the rest in float32."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None = None
    ):
        outputs, inputs = weight.shape
        self.blocks = empty_blocks(outputs, inputs, bits=16)
        self.bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        rows = weight.detach().float().contiguous()
        run_kernel("pack_bfloat16_weights", rows, outputs, inputs, self.blocks)
        page_out(weight)
        self.arguments = LinearArguments(
            *(outputs, inputs, 16, address(self.blocks), None, None),
            *(address(self.bias), ACTIVATIONS[activation]),
        )


def multiply_rows(linear: NativeLinear | NativeBfloat16Linear, rows: torch.Tensor) -> torch.Tensor:
    """Map many rows (R, D), of any row stride, to (R, M) in float32; threads share the rows."""
    product = rows.new_empty(len(rows), linear.arguments.outputs)
    run_kernel("multiply_blocks", linear.arguments, rows, rows.stride(0), len(rows), product)
    return product


def empty_blocks(outputs: int, inputs: int, bits: int) -> torch.Tensor:
    """Return zero bytes for weights (outputs, inputs), both padded to what the kernels need."""
    depth = DEPTH_BYTES * 8 // max(bits, 8)
    row_bytes = -(-inputs // depth) * depth * bits // 8
    return torch.zeros(-(-outputs // COLUMNS) * COLUMNS, row_bytes, dtype=torch.uint8)


class NativeNorm:
    """Layer normalization with a copy of the module's weights."""

    def __init__(self, module: torch.nn.LayerNorm):
        weights = module.weight, module.bias
        self.weights = [weight.detach().to(torch.float32, copy=True) for weight in weights]
        self.arguments = NormArguments(*map(address, self.weights), module.eps)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (R, D) to (R, D)."""
        hidden = hidden.float().contiguous()
        normalized = torch.empty_like(hidden)
        call_kernel("normalize_rows", self.arguments, hidden, *hidden.shape, normalized)
        return normalized


def native_best_tokens(logits: torch.Tensor, restriction: Restriction | None = None) -> BestTokens:
    """Compute ``tree.best_tokens.best_tokens`` of float32 logits (R, V), without a copy of them.

    Torch computes, with copies, ``groups`` without ``renormalize``, either with ``eos_scores``,
    and ``groups`` with ``after``.
    """
    if _has_three_groups(restriction):
        return best_tokens(logits, restriction)
    if restriction is not None and (restriction.groups is not None or restriction.renormalize):
        if not restriction.renormalize or restriction.eos_scores is not None:
            return best_tokens(logits, restriction)
        log_probs, tokens = native_top_tokens(logits, 1, restriction)
        normalizers = (logits.gather(1, tokens) - log_probs)[:, 0]
        return BestTokens(tokens[:, 0], normalizers, log_probs[:, 0])
    logits, arguments = logits.contiguous(), _restriction_arguments(restriction)
    tokens = torch.empty(len(logits), dtype=torch.long)
    best = BestTokens(tokens, *logits.new_empty(2, len(logits)))
    run_kernel("best_tokens", logits, *logits.shape, arguments, *best)
    return best


def native_top_tokens(
    logits: torch.Tensor, count: int, restriction: Restriction | None = None
) -> TopTokens:
    """Compute ``tree.best_tokens.top_tokens`` of float32 logits.

    Torch computes ``eos_scores``, and ``groups`` with ``after``.
    """
    if _has_three_groups(restriction) or (restriction and restriction.eos_scores is not None):
        return top_tokens(logits, count, restriction)
    logits, arguments = logits.contiguous(), _restriction_arguments(restriction)
    tokens = torch.empty(len(logits), count, dtype=torch.long)
    log_probs = logits.new_empty(len(logits), count)
    run_kernel("top_tokens", logits, *logits.shape, arguments, count, tokens, log_probs)
    return TopTokens(log_probs, tokens)


def _has_three_groups(restriction: Restriction | None) -> bool:
    groups = restriction and restriction.groups
    return groups is not None and groups.after is not None


def _restriction_arguments(restriction: Restriction | None) -> RestrictionArguments:
    if restriction is None:
        return RestrictionArguments(None, None, -1, None, None, 0, 0)
    of = restriction.groups
    tensors = restriction.blocked, restriction.rows, restriction.eos_scores, of and of.limits
    tensors = [tensor if tensor is None else tensor.contiguous() for tensor in tensors]
    blocked, rows, eos_scores, groups = map(address, tensors)
    arguments = RestrictionArguments(
        *(blocked, rows, restriction.eos, eos_scores, groups),
        *(of.last if of else 0, restriction.renormalize),
    )
    arguments.tensors = tensors  # keeps their memory allocated
    return arguments
