"""The encoder in lower precisions: near the trained module, independent of the batch."""

from contextlib import nullcontext

import pytest
import torch
from cases import combinations, pairs
from grown_trees import relative_error
from kernel_kinds import KINDS, rounded, with_kernels
from pretended_cuda import pretended_cuda
from recorded_calls import record_calls
from refusals import refuses
from tiny import tiny_encoder

from espnet_medusa.decoding.runtime import native_encoder, precision
from espnet_medusa.decoding.runtime.encoder import CastEncoder, GraphEncoder, build_encoder_runtime
from espnet_medusa.decoding.runtime.linear import GELU
from espnet_medusa.decoding.runtime.native.operations import NativeBfloat16Linear, NativeLinear
from espnet_medusa.decoding.runtime.native_encoder import NativeEncoder, NativeStem
from espnet_medusa.networks import merged_padding
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
LENGTHS = [1, 2, 33, 130, 199, 200]  # frames of features
SHAPES = [  # head sizes 8, 20, 64; widths that are no multiple of a panel
    {},
    {"output_size": 40, "attention_heads": 2, "linear_units": 72, "num_blocks": 1},
    {"output_size": 128, "attention_heads": 2, "linear_units": 320, "num_blocks": 3},
    {"subsampling": 4, "num_mel_bins": 128},
]
PRODUCTS = {"int8": (NativeLinear, 0.03), "bfloat16": (NativeBfloat16Linear, 0.01)}


def assert_near(runtime, encoder: HFWhisperEncoder, most: float) -> None:
    """Compare a runtime's output, in float32, with the trained module's."""
    expected, lengths, _ = encoder(*features_of(encoder))
    result, result_lengths = runtime(*features_of(encoder))
    assert result_lengths.tolist() == lengths.tolist() and result.shape == expected.shape
    assert result.dtype == torch.float32 and not torch.equal(result, expected)
    for ours, theirs, length in zip(result, expected, lengths, strict=True):
        assert relative_error(ours[:length], theirs[:length]) < most


def features_of(encoder: HFWhisperEncoder) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (B, T, bins) with zeros in padding, like ``LogMel``'s, and their lengths."""
    generator = torch.Generator().manual_seed(len(LENGTHS))
    bins = encoder.feature_kind.num_mel_bins
    features = torch.randn(len(LENGTHS), max(LENGTHS), bins, generator=generator)
    for row, length in zip(features, LENGTHS, strict=True):
        row[length:] = 0
    return features, torch.tensor(LENGTHS)


@with_kernels
@pairs(
    kind=KINDS, sizes=[(240, 384), (64, 33), (7, 1), (130, 96)],
    product=[NativeLinear, NativeBfloat16Linear], threads=[1, 2], indirect=["kind", "threads"],
)  # fmt: skip
def test_products_of_many_rows_equal_those_of_rounded_numbers(kind, sizes, product, threads):
    size, out = sizes
    generator = torch.Generator().manual_seed(size)
    weight = torch.randn(out, size, generator=generator) / size**0.5
    bias = torch.randn(out, generator=generator)
    linear = product(weight, bias, GELU)
    nearest = rounded if product is NativeLinear else lambda part: part.bfloat16().double()
    for rows in (1, 31, 97, 300):
        hidden = torch.randn(rows, size, generator=generator)
        expected = torch.nn.functional.gelu(nearest(hidden) @ nearest(weight).T + bias.double())
        result = native_encoder.multiply_rows(linear, hidden).double()
        torch.testing.assert_close(result, expected, rtol=0.0, atol=3e-5)
        wide = torch.full((rows, size + 5), torch.nan)  # between rows
        wide[:, :size] = hidden
        assert torch.equal(native_encoder.multiply_rows(linear, wide[:, :size]).double(), result)


@with_kernels
@pairs(kind=KINDS, shape=SHAPES, name=PRODUCTS, indirect=["kind"])
def test_output_is_near_the_trained_modules(kind, shape, name):
    product, most = PRODUCTS[name]
    encoder = tiny_encoder(len(kind), **shape)
    assert_near(NativeEncoder(encoder.whisper, product), encoder, most)


@with_kernels
@combinations(name=PRODUCTS)
def test_output_is_independent_of_batch_and_threads(kind, name, threads):
    encoder = tiny_encoder(0)
    runtime = build_encoder_runtime(encoder, name)
    features, lengths = features_of(encoder)
    together, frames = runtime(features, lengths)
    torch.set_num_threads(3 - threads)
    for row, length in enumerate(LENGTHS):
        alone, _ = runtime(features[row : row + 1, :length], torch.tensor([length]))
        assert torch.equal(together[row, : int(frames[row])], alone[0])


@combinations(name=PRODUCTS)
def test_without_kernels_torch_computes(name, monkeypatch):
    monkeypatch.setattr(precision, "kernels", lambda: None)
    monkeypatch.setattr(precision, "has_bfloat16_instructions", lambda: True)
    encoder = tiny_encoder(0)
    runtime = build_encoder_runtime(encoder, name)
    assert isinstance(runtime, CastEncoder)
    assert_near(runtime, encoder, 0.03)


def test_the_module_is_used_in_its_own_precision(monkeypatch):
    encoder = tiny_encoder(0)
    assert build_encoder_runtime(encoder, None) is None
    assert build_encoder_runtime(encoder, "float32") is None
    monkeypatch.setattr(precision, "kernels", lambda: None)
    monkeypatch.setattr(precision, "has_bfloat16_instructions", lambda: False)
    assert build_encoder_runtime(encoder, "int8") is None, "float32 is faster there"


def test_output_has_the_modules_dtype():
    encoder = tiny_encoder(0).double()
    runtime = build_encoder_runtime(encoder, "float32")
    result, expected = (part(*features_of(encoder))[0] for part in (runtime, encoder))
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, expected, rtol=0.0, atol=1e-5)


@combinations(name=PRODUCTS)
def test_the_runtime_does_not_need_the_modules_weights(name):
    encoder = tiny_encoder(0)
    runtime = build_encoder_runtime(encoder, name)
    if runtime is None:
        pytest.skip("nothing is packed on this machine")
    before, _ = runtime(*features_of(encoder))
    encoder.release()
    assert not any(weight.numel() for weight in encoder.whisper.parameters())
    assert torch.equal(runtime(*features_of(encoder))[0], before)
    encoder.features(torch.zeros(1, 3200), torch.tensor([3200]))  # needs no weights


@refuses(("float16", "encoder_precision: float16; allowed on a CPU: float32"))
def test_impossible_precisions_are_refused(name):
    build_encoder_runtime(tiny_encoder(0), name)


def with_silence(frames: int, silence: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return noise (2, frames, 80) that ends with constant frames, and lengths (2,).

    ``silence`` frames of the first row are constant, and five more of the second.
    """
    features = torch.randn(2, frames, 80, generator=torch.Generator().manual_seed(frames))
    features[0, frames - silence :] = -1.0
    features[1, max(frames - silence - 5, 0) :] = -0.9
    return features, torch.tensor([frames] * 2)


@with_kernels
@pairs(
    kind=KINDS, product=[NativeLinear, NativeBfloat16Linear], subsampling=[2, 4],
    indirect=["kind"],
)  # fmt: skip
def test_silence_is_computed_once_and_equal_bit_for_bit(kind, product, subsampling, monkeypatch):
    encoder = tiny_encoder(0, subsampling=subsampling, max_source_positions=200)
    stem = NativeStem(encoder.whisper, product)
    counts = record_calls(monkeypatch, native_encoder, "multiply_rows", lambda _, rows: len(rows))
    shapes = [(silence, frames) for frames in (61, 62, 63, 64) for silence in (*range(24), frames)]
    for silence, frames in [*shapes, (180, 200)]:
        features, lengths = with_silence(frames, silence)
        assert merged_padding.padded_frames(features) == max(silence, 1)
        window = int(stem(features, lengths)[1][0])
        speech = window - torch.tensor([silence, silence]) // subsampling
        for kept in (None, merged_padding.kept_rows(speech, window)):
            counts.clear()
            output, sizes = stem(features, lengths, kept)
            rows = sum(counts)
            with monkeypatch.context() as patch:
                patch.setattr(merged_padding, "padded_frames", lambda features: 0)
                counts.clear()
                expected, expected_sizes = stem(features, lengths, kept)
            assert torch.equal(output, expected) and torch.equal(sizes, expected_sizes)
            assert rows <= sum(counts)
    assert rows < 0.25 * sum(counts)


@combinations(subsampling=[2, 4])
def test_the_module_computes_silence_once_if_padding_is_merged(subsampling, monkeypatch):
    rows = 200
    encoder = tiny_encoder(0, subsampling=subsampling, max_source_positions=rows).eval()
    frames, computed = rows * subsampling, []
    encoder.whisper.conv2.register_forward_hook(lambda *call: computed.append(call[2].size(2)))
    for silence in (0, 11, 12, 13, 14, 15, 16, 17, 300, frames - 3, frames):
        features, lengths = with_silence(frames, silence)
        kept = merged_padding.kept_rows((frames - torch.tensor([silence, silence])) // 4, rows)
        output, sizes = encoder.encode(features, lengths, kept)
        with monkeypatch.context() as patch:
            patch.setattr(merged_padding, "padded_frames", lambda features: 0)
            expected, expected_sizes = encoder.encode(features, lengths, kept)
        torch.testing.assert_close(output, expected, rtol=0.0, atol=1e-5)
        assert torch.equal(sizes, expected_sizes)
    assert computed[0] == computed[1] == rows and computed[-2] < 10


@with_kernels
def test_padding_next_to_longer_audio_is_not_silence():
    stem = NativeStem(tiny_encoder(0).whisper, NativeLinear)
    features, _ = with_silence(90, 0)
    features[0, 40:] = 0
    features[1, 50:] = 1.0
    together, sizes = stem(features, torch.tensor([40, 90]))
    for row, length in enumerate([40, 90]):
        alone, size = stem(features[row : row + 1, :length], torch.tensor([length]))
        assert int(size) == int(sizes[row])
        assert torch.equal(together[row, : int(size)], alone[0])


@combinations(seed=range(2))
def test_whole_windows_of_few_utterances_are_encoded_alike(seed):
    """Without CUDA the graph's computation runs as it is."""
    encoder = tiny_encoder(seed, window="whisper")
    plain, graph = (kind(encoder, torch.bfloat16) for kind in (CastEncoder, GraphEncoder))
    shape = encoder.feature_kind.window_frames, encoder.feature_kind.num_mel_bins
    for count in (1, 2, 3, 2):
        features = torch.randn(count, *shape)
        frames = torch.full((count,), shape[0])
        expected, lengths = plain(features, frames)
        result, result_lengths = graph(features, frames)
        assert torch.equal(result, expected) and torch.equal(result_lengths, lengths)
    assert {shape[0] for shape in graph.calls} == {1, 2}


@combinations(device=["mock", pytest.param("cuda", marks=[pytest.mark.cuda, NO_CUDA])])
def test_the_graph_of_a_window_encodes_alike(device):
    encoder = tiny_encoder(0, window="whisper")
    kind = encoder.feature_kind
    features = torch.randn(2, kind.window_frames, kind.num_mel_bins)
    frames = torch.full((2,), kind.window_frames)
    expected, _ = CastEncoder(encoder, torch.bfloat16)(features, frames)
    with pretended_cuda() if device == "mock" else nullcontext():
        inputs = features.to("cuda:0"), frames.to("cuda:0")
        graph = GraphEncoder(encoder.to("cuda:0"), torch.bfloat16)
        results = [graph(*inputs)[0].cpu() for _ in range(3)]
    for result in results:
        assert relative_error(result, expected) < 0.02
