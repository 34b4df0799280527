"""Losses in chunks against their definition over whole logits: values, gradients, rounding."""

from functools import cache
from itertools import product

import pytest
import torch
from cases import cases
from refusals import assert_refused
from tiny import LLAMA, batch, model_of, tiny_decoder
from whole_logits import WholeLogitsModel

from espnet_medusa.espnet.training import projection_loss
from espnet_medusa.espnet.training.asr_model import MedusaASRModel
from espnet_medusa.espnet.training.projection_loss import Objective, projected_loss

NORMALIZED = {"ctc_weight": 0.0, "length_normalized_loss": True}
LOSSES = {
    "smoothed": {"ctc_weight": 0.3, "lsm_weight": 0.1},
    "weighted": NORMALIZED | {
        "lsm_weight": 0.1, "base_loss_weight": 2.0, "head_loss_weight": 0.7, "head_loss_decay": 0.5,
    },
    "linear": NORMALIZED | {"kl_weight": 0.01},
    "block": NORMALIZED | {"base_loss_weight": 0.0},
    "distilled": {
        "ctc_weight": 0.0, "kl_weight": 1.0, "base_loss_weight": 0.0, "head_loss_weight": 0.0,
    },
}  # fmt: skip
HEADS = {
    "none": 0, "linear": 9, "block": 9, "recurrent": 9, "latent": 3, "projection": 3,
    "llama latent": 3, "llama projection": 3,
}  # fmt: skip
TRAINED = {  # by model_conf.freeze_whisper
    "nothing": ("",),
    "all_but_last_layer": (
        "decoder.whisper.layers.1.", "decoder.llama.model.layers.1.",
        "decoder.adapter.", "decoder.heads.", "ctc.",
    ),
    "all": ("decoder.adapter.", "decoder.heads.", "ctc."),
}  # fmt: skip


def learns(heads: str, loss: str, freeze: str) -> bool:
    if heads.endswith("projection") and LOSSES[loss].get("kl_weight"):
        return False  # no projection that the teacher shares
    # Without heads, the base head is its own teacher.
    return heads != "none" or (loss in ("smoothed", "weighted", "linear") and freeze != "all")


def step(kind, decoder, **conf):
    model = model_of(decoder, **conf)
    model.__class__ = kind
    loss, stats, _ = model.train()(**batch())
    loss.backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return loss.detach(), stats, gradients


def make_decoder(heads: str, loss: str):
    residual = heads in ("linear", "block", "recurrent")
    options = {"heads_conf": {"base_head": True}} if residual else {}
    if not heads.startswith(LLAMA):
        options["keep_original_last_layer"] = loss == "linear"
    return tiny_decoder(0, heads, HEADS[heads], **options)


@cache
def step_on_whole_logits(heads: str, loss: str):
    return step(WholeLogitsModel, make_decoder(heads, loss), **LOSSES[loss])


def steps_to_compare() -> list:
    """Return each pair of heads and loss, with what is trained and the size of a chunk in turn."""
    rows, few = [], (1, 5)
    for place, pair in enumerate(product(HEADS, LOSSES)):
        frozen = [freeze for freeze in TRAINED if learns(*pair, freeze)]
        chosen = frozen[place % len(frozen) :][:1] if frozen else []
        rows += [(*pair, freeze, few[place // 2 % 2]) for freeze in chosen]
        others = [one for one in product([pair[0]], [pair[1]], frozen, few) if one not in rows]
        rows += [pytest.param(*one, marks=pytest.mark.full_length) for one in others]
    return rows


@cases(*steps_to_compare())
def test_losses_and_gradients_are_those_of_whole_logits(heads, loss, freeze, rows, monkeypatch):
    """Padded labels, labels shorter than K, trained and tied embedding, smoothed labels."""
    monkeypatch.setattr(projection_loss, "CHUNK_LOGITS", rows * 11)
    conf = LOSSES[loss] | {"freeze_whisper": freeze}
    value, stats, gradients = step(MedusaASRModel, make_decoder(heads, loss), **conf)
    expected, expected_stats, all_gradients = step_on_whole_logits(heads, loss)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(stats, expected_stats, equal_nan=True)
    assert gradients.keys() == {name for name in all_gradients if name.startswith(TRAINED[freeze])}
    largest = max(float(gradient.abs().max()) for gradient in all_gradients.values())
    close = {"rtol": 1e-4, "atol": 1e-6 * largest}
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, all_gradients[name], **close, msg=name)


def rows_of(*lengths: int) -> list[torch.Tensor]:
    return [torch.randn(length, 6, dtype=torch.float64, requires_grad=True) for length in lengths]


def test_a_frozen_projection_costs_no_gradient_and_validation_none_at_all():
    weight, *hidden = rows_of(5, 4, 3)
    weight = weight.detach()
    arguments = torch.tensor([1, 4, 0, 2]), [weight, weight], [Objective(1.0), Objective(1.0)]
    loss, _ = projected_loss(hidden, *arguments)
    kept_weight, kept, _ = loss.grad_fn.gradients
    assert kept_weight is None and [rows.shape for rows in kept] == [(4, 6), (3, 6)]
    with torch.no_grad():
        assert projected_loss(hidden, *arguments)[0].grad_fn is None


def test_backward_works_once():
    weight, hidden = rows_of(5, 4)
    loss, _ = projected_loss([hidden], torch.tensor([1, 4, 0, 2]), [weight], [Objective(1.0)])
    loss.backward(retain_graph=True)
    assert_refused("called twice", loss.backward, error=RuntimeError)


def test_half_precision_keeps_small_gradients():
    """Weights per label are below float16's smallest number, as with many labels and heads."""
    torch.manual_seed(0)
    weight, hidden = (rows.detach().float() for rows in rows_of(5, 4))
    weight, hidden = weight.requires_grad_(), hidden.requires_grad_()
    targets = torch.tensor([1, 4, 0, 2])
    with torch.autocast("cpu", dtype=torch.float16):
        loss, _ = projected_loss([hidden], targets, [weight], [Objective(1e-9)])
    loss.backward()
    whole = torch.nn.functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    gradients = torch.autograd.grad(1e-9 * whole, (hidden, weight))
    for gradient, expected in zip((hidden.grad, weight.grad), gradients, strict=True):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=1e-12)
