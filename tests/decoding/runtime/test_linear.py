"""Packed matrix products, activations and residuals equal torch's."""

from functools import partial

import pytest
import torch
from cases import pairs

from espnet_medusa.decoding.runtime import linear, precision
from espnet_medusa.decoding.runtime.linear import (
    ACTIVATIONS,
    BlockedLinear,
    PlainLinear,
    pack_linear,
)
from espnet_medusa.decoding.runtime.precision import Precision

SIZES = [(32, 32), (48, 96), (384, 1536), (512, 51), (100, 1000), (1, 7)]  # D, M
NAMES = [None, *ACTIVATIONS]

HAS_ONEDNN = torch.backends.mkldnn.is_available()
pytestmark = pytest.mark.skipif(not HAS_ONEDNN, reason="this torch has no oneDNN")


def by_hand(weight, bias, activation, hidden, residual):
    """In float64, without fused operations."""
    product = hidden.double() @ weight.double().T
    if bias is not None:
        product = product + bias.double()
    if activation is not None:
        product = ACTIVATIONS[activation](product)
    return product if residual is None else product + residual.double()


@pairs(sizes=SIZES, activation=NAMES, has_bias=[False, True], has_residual=[False, True])
def test_blocked_and_plain_equal_float64(sizes, activation, has_bias, has_residual):
    size, out = sizes
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    weight, bias = draw(out, size) / size**0.5, draw(out) if has_bias else None
    kinds = [kind(weight, bias, activation) for kind in (BlockedLinear, PlainLinear)]
    for rows in (1, 2, 11, 16, 17, 88):
        hidden, residual = draw(rows, size), draw(rows, out) if has_residual else None
        expected = by_hand(weight, bias, activation, hidden, residual)
        for packed in kinds:
            given = hidden.clone(), None if residual is None else residual.clone()
            result = packed(*given)
            assert result.dtype == torch.float32 and result.shape == (rows, out)
            torch.testing.assert_close(result.double(), expected, rtol=0.0, atol=1e-5)
            assert torch.equal(given[0], hidden)
            assert residual is None or torch.equal(given[1], residual), "inputs are not changed"


@pairs(sizes=SIZES, activation=NAMES, has_residual=[False, True])
def test_bfloat16_is_near_float64(sizes, activation, has_residual):
    size, out = sizes
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(1), dtype=torch.bfloat16)
    weight, bias = draw(out, size) / size**0.5, draw(out)
    packed = pack_linear(weight, bias, Precision(torch.bfloat16), activation)
    for rows in (1, 11, 40):
        hidden, residual = draw(rows, size), draw(rows, out) if has_residual else None
        expected = by_hand(weight, bias, activation, hidden, residual).float()
        result = packed(hidden, residual)
        assert result.dtype == torch.bfloat16
        # Rounded intermediate values (product, sum) may be several times the result.
        torch.testing.assert_close(result.float(), expected, rtol=2**-7, atol=2**-5)


def test_tensors_that_are_not_contiguous():
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(2))
    weight, hidden, residual = draw(96, 40)[:, 3:35], draw(5, 70)[:, 6:38], draw(96, 5).T
    for kind in (BlockedLinear, PlainLinear):
        result = kind(weight, None, None)(hidden, residual)
        expected = by_hand(weight, None, None, hidden, residual)
        torch.testing.assert_close(result.double(), expected, rtol=0.0, atol=1e-5)


def test_small_matrices_are_not_blocked():
    large = linear.FEW_WEIGHTS // 64
    few, many = (torch.ones(rows, 64) for rows in (large - 1, large))
    assert type(pack_linear(many, None, Precision(torch.float32))) is BlockedLinear
    assert type(pack_linear(few, None, Precision(torch.float32))) is PlainLinear


@pytest.mark.parametrize(("supported", "kind"), [(True, BlockedLinear), (False, PlainLinear)])
def test_bfloat16_is_blocked_if_the_processor_supports_it(monkeypatch, supported, kind):
    if supported and not precision.has_blocked_layout(torch.bfloat16):
        pytest.skip("this processor has no instructions for bfloat16")
    monkeypatch.setattr(precision, "has_bfloat16_instructions", lambda: supported)
    assert type(pack_linear(torch.ones(8, 8), None, Precision(torch.bfloat16))) is kind
