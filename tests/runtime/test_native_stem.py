"""The stem over silence: one row for all of it, to the bit what is computed row by row."""

import pytest
import torch
from kernel_kinds import with_kernels
from tiny import tiny_encoder

from espnet_medusa.runtime import native_encoder
from espnet_medusa.runtime.native.operations import NativeBfloat16Linear, NativeLinear
from espnet_medusa.runtime.native_encoder import NativeStem, silent_frames


def features_of(speech: list[int], frames: int, bins: int = 80) -> torch.Tensor:
    """(B, frames, bins): so many frames of noise each, then silence of its own."""
    generator = torch.Generator().manual_seed(frames)
    features = torch.randn(len(speech), frames, bins, generator=generator)
    for row, count in enumerate(speech):
        features[row, count:] = 0.1 * row - 1.0
    return features


@with_kernels
@pytest.mark.parametrize("product", [NativeLinear, NativeBfloat16Linear])
@pytest.mark.parametrize("subsampling", [2, 4])
@torch.no_grad()
def test_silence_computed_once_is_the_same_to_the_bit(kind, product, subsampling, monkeypatch):
    encoder = tiny_encoder(0, subsampling=subsampling, max_source_positions=200)
    stem = NativeStem(encoder.whisper, product)
    multiplied = []
    multiply = native_encoder.multiply_rows

    def counting(linear, rows):
        multiplied.append(len(rows))
        return multiply(linear, rows)

    monkeypatch.setattr(native_encoder, "multiply_rows", counting)
    shapes = [(silence, frames) for frames in (61, 62, 63, 64) for silence in (*range(24), frames)]
    for silence, frames in [*shapes, (180, 200)]:
        features = features_of([frames - silence, max(frames - silence - 5, 0)], frames)
        assert silent_frames(features) == max(silence, 1)
        lengths = torch.tensor([frames] * 2)
        multiplied.clear()
        found, sizes = stem(features, lengths)
        rows = sum(multiplied)
        with monkeypatch.context() as patch:
            patch.setattr(native_encoder, "silent_frames", lambda features: 0)
            multiplied.clear()
            expected, expected_sizes = stem(features, lengths)
        assert torch.equal(found, expected) and torch.equal(sizes, expected_sizes)
        assert rows <= sum(multiplied)
    assert rows < 0.25 * sum(multiplied)


@with_kernels
@torch.no_grad()
def test_beside_longer_audio_zeros_are_no_silence():
    encoder = tiny_encoder(0)
    stem = NativeStem(encoder.whisper, NativeLinear)
    features = features_of([40, 90], 90)
    features[0, 40:] = 0
    features[1, 50:] = 1.0
    together, sizes = stem(features, torch.tensor([40, 90]))
    for row, length in enumerate([40, 90]):
        alone, size = stem(features[row : row + 1, :length], torch.tensor([length]))
        assert int(size) == int(sizes[row])
        assert torch.equal(together[row, : int(size)], alone[0])


def test_silence_is_what_comes_again_until_the_end():
    features = torch.zeros(2, 9, 3)
    assert silent_frames(features) == 9
    features[1, 2, 1] = 1.0
    assert silent_frames(features) == 6
    features[0, 8, 0] = 1.0
    assert silent_frames(features) == 1
