"""Models are built without random weights, and weights are loaded without copies."""

import pytest
import torch

from espnet_medusa.errors import InputError
from espnet_medusa.inference.experiment import NoInitialization, put_weights


def network() -> torch.nn.Module:
    """Layers with random and with computed weights, shared weights, a non-persistent buffer."""
    model = torch.nn.Sequential(
        torch.nn.Embedding(30, 4, padding_idx=0),
        torch.nn.TransformerEncoderLayer(4, 2, 8),
        torch.nn.Conv1d(4, 4, 3),
        torch.nn.LSTM(4, 4),
        torch.nn.Linear(4, 30, bias=False),
    )
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.xavier_uniform_(parameter[None])
    model[4].weight = model[0].weight
    model.register_buffer("angles", torch.arange(4).sin(), persistent=False)
    return model


def test_no_initialization_draws_no_random_numbers():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    with NoInitialization():
        model = network()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(model.angles, torch.arange(4).sin())
    network()
    assert not torch.equal(torch.random.get_rng_state(), before), "elsewhere all is as it was"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_are_not_copied(dtype):
    torch.manual_seed(1)
    expected = network()
    weights = expected.state_dict()
    with NoInitialization():
        model = network().to(dtype)
    model[0].weight.requires_grad_(False)
    put_weights(weights, model, "model.pth")
    found = model.state_dict()
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(found[name], weight.to(dtype)), name
        assert (found[name].data_ptr() == weight.data_ptr()) == (dtype == torch.float32)
    assert not model[0].weight.requires_grad and model[2].weight.requires_grad


def test_weights_of_another_model_are_refused():
    weights = network().state_dict()
    weights["2.bias"] = torch.zeros(5)
    with pytest.raises(InputError, match=r"model.pth: .*2.bias is \(5,\), the model's \(4,\)"):
        put_weights(weights, network(), "model.pth")
    del weights["2.bias"]
    with pytest.raises(InputError, match="2.bias is missing"):
        put_weights(weights, network(), "model.pth")
