"""The encoder in fewer bits: near the trained module, a batch as single utterances."""

import pytest
import torch
from kernel_kinds import with_kernels
from tiny import tiny_encoder

from espnet_medusa.errors import InputError
from espnet_medusa.model.whisper_encoder import HFWhisperEncoder
from espnet_medusa.runtime import encoder as encoder_runtime
from espnet_medusa.runtime.encoder import CastEncoder, build_encoder_runtime
from espnet_medusa.runtime.linear import GELU
from espnet_medusa.runtime.native.operations import (
    NativeBfloat16Linear,
    NativeLinear,
    multiply_rows,
)
from espnet_medusa.runtime.native_encoder import NativeConvolution, NativeEncoder

INT8_MAX = 127
LENGTHS = [1, 2, 33, 130, 199, 200]  # frames of features
SHAPES = [  # of encoders: head sizes 8, 20, 64; widths that fill no panel
    {},
    {"output_size": 40, "attention_heads": 2, "linear_units": 72, "num_blocks": 1},
    {"output_size": 128, "attention_heads": 2, "linear_units": 320, "num_blocks": 3},
    {"subsampling": 4, "num_mel_bins": 128},
]
PRODUCTS = {"int8": (NativeLinear, 0.03), "bfloat16": (NativeBfloat16Linear, 0.01)}


def features_of(encoder: HFWhisperEncoder, lengths: list[int]) -> torch.Tensor:
    """(B, T, bins) with zeros behind the ends, as ``LogMel`` gives them."""
    generator = torch.Generator().manual_seed(len(lengths))
    bins = encoder.feature_kind.num_mel_bins
    features = torch.randn(len(lengths), max(lengths), bins, generator=generator)
    for row, length in enumerate(lengths):
        features[row, length:] = 0
    return features


def rounded(rows: torch.Tensor, product: type) -> torch.Tensor:
    """As the kernels round rows and weights, in float64."""
    if product is NativeBfloat16Linear:
        return rows.bfloat16().double()
    largest = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-20)
    return (rows * (INT8_MAX / largest)).round().double() * (largest.double() / INT8_MAX)


@with_kernels
@pytest.mark.parametrize("product", [NativeLinear, NativeBfloat16Linear])
@pytest.mark.parametrize(("size", "out"), [(240, 384), (64, 33), (7, 1), (130, 96)])
def test_many_rows_are_products_of_rounded_numbers(kind, product, size, out, threads):
    generator = torch.Generator().manual_seed(size)
    weight = torch.randn(out, size, generator=generator) / size**0.5
    bias = torch.randn(out, generator=generator)
    linear = product(weight, bias, GELU)
    for rows in (1, 31, 97, 300):
        hidden = torch.randn(rows, size, generator=generator)
        exact = rounded(hidden, product) @ rounded(weight, product).T + bias.double()
        expected = torch.nn.functional.gelu(exact)
        found = multiply_rows(linear, hidden).double()
        torch.testing.assert_close(found, expected, rtol=0.0, atol=3e-5)
        wide = torch.full((rows, size + 5), torch.nan)  # what stands between rows is not read
        wide[:, :size] = hidden
        assert torch.equal(multiply_rows(linear, wide[:, :size]).double(), found)


@with_kernels
@pytest.mark.parametrize("stride", [1, 2])
@torch.no_grad()
def test_a_convolution_is_a_product(kind, stride):
    torch.manual_seed(stride)
    module = torch.nn.Conv1d(24, 40, 3, stride=stride, padding=1)
    for frames in (1, 2, 51, 100):
        hidden = torch.randn(2, frames, 24)
        expected = torch.nn.functional.gelu(module(hidden.transpose(1, 2))).transpose(1, 2)
        found = NativeConvolution(module, NativeBfloat16Linear)(hidden)
        assert found.shape == expected.shape
        assert (found - expected).norm() < 0.01 * expected.norm()


@with_kernels
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@torch.no_grad()
def test_memory_is_near_the_trained_modules(kind, shape, name):
    product, most = PRODUCTS[name]
    encoder = tiny_encoder(len(kind), **shape)
    features, frames = features_of(encoder, LENGTHS), torch.tensor(LENGTHS)
    expected, lengths, _ = encoder(features, frames)
    found, found_lengths = NativeEncoder(encoder.whisper, product)(features, frames)
    assert found_lengths.tolist() == lengths.tolist() and found.shape == expected.shape
    for row, length in enumerate(lengths.tolist()):
        error = found[row, :length] - expected[row, :length]
        assert error.norm() < most * expected[row, :length].norm()
    assert not torch.equal(found, expected)


@with_kernels
@pytest.mark.parametrize("name", PRODUCTS)
@torch.no_grad()
def test_a_batch_is_single_utterances_bit_for_bit_on_any_number_of_threads(kind, name, threads):
    encoder = tiny_encoder(0)
    runtime = build_encoder_runtime(encoder, name)
    features = features_of(encoder, LENGTHS)
    together, frames = runtime(features, torch.tensor(LENGTHS))
    torch.set_num_threads(3 - threads)
    for row, length in enumerate(LENGTHS):
        alone, _ = runtime(features[row : row + 1, :length], torch.tensor([length]))
        assert torch.equal(together[row, : int(frames[row])], alone[0])


@pytest.mark.parametrize("name", ["int8", "bfloat16"])
@torch.no_grad()
def test_without_kernels_torch_computes(name, monkeypatch):
    monkeypatch.setattr(encoder_runtime, "kernels", lambda: None)
    monkeypatch.setattr(encoder_runtime, "has_bfloat16_instructions", lambda: True)
    encoder = tiny_encoder(0)
    runtime = build_encoder_runtime(encoder, name)
    assert isinstance(runtime, CastEncoder)
    features, frames = features_of(encoder, LENGTHS), torch.tensor(LENGTHS)
    expected, lengths, _ = encoder(features, frames)
    found, found_lengths = runtime(features, frames)
    assert found.dtype == torch.float32 and found_lengths.tolist() == lengths.tolist()
    for row, length in enumerate(lengths.tolist()):
        error = found[row, :length] - expected[row, :length]
        assert error.norm() < 0.03 * expected[row, :length].norm()


def test_the_modules_own_numbers_are_the_module(monkeypatch):
    encoder = tiny_encoder(0)
    assert build_encoder_runtime(encoder, None) is None
    assert build_encoder_runtime(encoder, "float32") is None
    monkeypatch.setattr(encoder_runtime, "kernels", lambda: None)
    monkeypatch.setattr(encoder_runtime, "has_bfloat16_instructions", lambda: False)
    assert build_encoder_runtime(encoder, "int8") is None, "float32 is faster there"


@torch.no_grad()
def test_another_models_numbers_are_cast():
    encoder = tiny_encoder(0).double()
    runtime = build_encoder_runtime(encoder, "float32")
    features, frames = features_of(encoder, LENGTHS), torch.tensor(LENGTHS)
    found, expected = runtime(features, frames)[0], encoder(features, frames)[0]
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
@torch.no_grad()
def test_released_weights_leave_memory_as_it_was(name):
    encoder = tiny_encoder(0)
    runtime = build_encoder_runtime(encoder, name)
    if runtime is None:
        pytest.skip("nothing is packed on this machine")
    features, frames = features_of(encoder, LENGTHS), torch.tensor(LENGTHS)
    before, _ = runtime(features, frames)
    encoder.release()
    assert not any(weight.numel() for weight in encoder.whisper.parameters())
    assert torch.equal(runtime(features, frames)[0], before)
    encoder.features(torch.zeros(1, 3200), torch.tensor([3200]))  # needs no weights


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("float16", "encoder_precision: float16; allowed on a CPU: float32, bfloat16, int8"),
        ("int4", "encoder_precision: 'int4' is not known.*allowed: float32, bfloat16"),
    ],
)
def test_what_cannot_be_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        build_encoder_runtime(tiny_encoder(0), name)
