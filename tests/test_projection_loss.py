"""Losses in chunks against their definition over whole logits: values, gradients, rounding."""

import sys
from pathlib import Path

import pytest
import torch
from test_model import batch, model_of
from tiny import tiny_decoder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from whole_logits import WholeLogitsModel  # noqa: E402

from espnet_medusa import projection_loss  # noqa: E402
from espnet_medusa.model import MedusaASRModel  # noqa: E402
from espnet_medusa.projection_loss import Objective, projected_loss  # noqa: E402

PLAIN = {"ctc_weight": 0.3, "lsm_weight": 0.1}
WEIGHTED = {
    "ctc_weight": 0.0, "length_normalized_loss": True, "base_loss_weight": 2.0,
    "head_loss_weight": 0.7, "head_loss_decay": 0.5,
}  # fmt: skip
PAPER = {"ctc_weight": 0.0, "length_normalized_loss": True, "kl_weight": 0.01}
DISTILLED = {"ctc_weight": 0.0, "kl_weight": 1.0, "base_loss_weight": 0.0, "head_loss_weight": 0.0}


def step(kind, decoder, **conf):
    """Loss, stats and gradients by name of one step."""
    model = model_of(decoder, **conf)
    model.__class__ = kind
    loss, stats, _ = model.train()(**batch())
    loss.backward()
    return loss, stats, {name: value.grad for name, value in model.named_parameters()}


@pytest.fixture(params=[1, 5, 2**22], ids=["row", "rows", "all"])
def chunk(request, monkeypatch):
    """Labels that are projected together."""
    monkeypatch.setattr(projection_loss, "CHUNK_LOGITS", request.param * 11)


@pytest.mark.parametrize("conf", [PLAIN, WEIGHTED, PAPER, DISTILLED])
@pytest.mark.parametrize(
    ("heads", "num_heads"), [("none", 0), ("linear", 3), ("block", 9), ("recurrent", 3)]
)
def test_losses_and_gradients_are_those_of_whole_logits(heads, num_heads, conf, chunk):
    """Padded labels, labels shorter than K, trained and tied embedding, smoothed labels."""
    kept = {"keep_original_last_layer": conf is PAPER, "heads_conf": {"base_head": True}}
    found, expected = (
        step(kind, tiny_decoder(0, heads, num_heads, **kept), **conf)
        for kind in (MedusaASRModel, WholeLogitsModel)
    )
    torch.testing.assert_close(found[0], expected[0])
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        torch.testing.assert_close(found[1][name], value, equal_nan=True, msg=name)
    for name, gradient in expected[2].items():
        if gradient is None:
            assert found[2][name] is None, name
        else:
            torch.testing.assert_close(found[2][name], gradient, rtol=1e-4, atol=1e-5, msg=name)


def rows_of(*lengths: int) -> list[torch.Tensor]:
    return [torch.randn(length, 6, dtype=torch.float64, requires_grad=True) for length in lengths]


def test_a_frozen_projection_costs_no_gradient_and_validation_none_at_all():
    weight, *hidden = rows_of(5, 4, 3)
    weight = weight.detach()
    arguments = torch.tensor([1, 4, 0, 2]), weight, [Objective(1.0), Objective(1.0)]
    loss, _ = projected_loss(hidden, *arguments)
    kept_weight, kept, _ = loss.grad_fn.gradients
    assert kept_weight is None and [rows.shape for rows in kept] == [(4, 6), (3, 6)]
    with torch.no_grad():
        assert projected_loss(hidden, *arguments)[0].grad_fn is None


def test_the_gradient_flows_once():
    weight, hidden = rows_of(5, 4)
    loss, _ = projected_loss([hidden], torch.tensor([1, 4, 0, 2]), weight, [Objective(1.0)])
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="compute it again"):
        loss.backward()


def test_half_precision_keeps_small_gradients():
    """Weights per label below float16's least number, as with many labels and heads."""
    torch.manual_seed(0)
    weight, hidden = (rows.detach().float() for rows in rows_of(5, 4))
    weight, hidden = weight.requires_grad_(), hidden.requires_grad_()
    targets = torch.tensor([1, 4, 0, 2])
    with torch.autocast("cpu", dtype=torch.float16):
        loss, _ = projected_loss([hidden], targets, weight, [Objective(1e-9)])
    loss.backward()
    found = hidden.grad, weight.grad
    hidden.grad = weight.grad = None
    (
        1e-9 * torch.nn.functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    ).backward()
    for gradient, expected in zip(found, (hidden.grad, weight.grad), strict=True):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-12)
