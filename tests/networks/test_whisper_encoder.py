"""Whisper's encoder against transformers', batches against single utterances, windows, options."""

import pytest
import torch
from cases import combinations
from refusals import assert_refused, refuses
from tiny import tiny_encoder
from tiny_whisper import save_tiny_whisper
from transformers_whisper import features_of, tiny_whisper

from espnet_medusa.networks.whisper.log_mel import HOP_SAMPLES, LogMel
from espnet_medusa.networks.whisper_encoder import WINDOWS, HFWhisperEncoder


def noise(seed: int, num_samples: int) -> torch.Tensor:
    return 0.1 * torch.randn(num_samples, generator=torch.Generator().manual_seed(seed))


def padded_noise(lengths: list[int]) -> torch.Tensor:
    """Return (B, samples) with 7 in padding."""
    rows = [noise(row, length) for row, length in enumerate(lengths)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=7.0)


@pytest.mark.parametrize("num_mel_bins", [80, 128])
def test_log_mel_equals_transformers(num_mel_bins):
    samples = noise(0, 50000)
    expected = features_of(samples.numpy(), num_mel_bins)
    result, frames = LogMel(num_mel_bins)(samples[None], torch.tensor([50000]), 3000, padded=True)
    assert frames.tolist() == [3000]
    torch.testing.assert_close(result, expected, rtol=1e-7, atol=1e-4)


@pytest.mark.parametrize("length", [200, 359, 361, 50000, 479799, 479801, 480000])
def test_features_of_silence_are_those_of_zeros(length):
    log_mel, samples, lengths = LogMel(), noise(1, length), torch.tensor([length])
    zeros = torch.nn.functional.pad(samples, (0, 480000 - length))
    expected, _ = log_mel(zeros[None], lengths, 3000, padded=True)
    assert torch.equal(log_mel(samples[None], lengths, 3000, padded=True)[0], expected)
    added = 3000 - length // HOP_SAMPLES
    assert torch.equal(log_mel.recording(samples, added), log_mel.recording(zeros, 0))


@combinations(subsampling=[2, 4], window=WINDOWS, longest=[16000, None])
def test_batch_equals_singles(subsampling, window, longest, no_gradients):
    encoder = tiny_encoder(0, subsampling=subsampling, window=window)
    longest = longest or encoder.window_samples
    lengths = [HOP_SAMPLES, 4321, 9999, longest, 161, 12345]
    batch = padded_noise(lengths)
    together, frames, _ = encoder(batch, torch.tensor(lengths))
    for row, (length, size) in enumerate(zip(lengths, frames.tolist(), strict=True)):
        alone, count, _ = encoder(batch[row : row + 1, :length], torch.tensor([length]))
        assert count.tolist() == [size]
        torch.testing.assert_close(together[row, :size], alone[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("subsampling", [2, 4])
def test_cropped_output_equals_the_beginning_of_the_windows(subsampling, no_gradients):
    lengths = torch.tensor([HOP_SAMPLES, 4321, 16000, 161, 12345])
    batch = torch.stack([noise(row, 16000) for row in range(len(lengths))])
    windows, cropped, unpadded = (
        tiny_encoder(0, subsampling=subsampling, window=window, crop_to_audio=crop)
        for window, crop in (("whisper", False), ("whisper", True), ("audio", False))
    )
    whole, frames, _ = windows(batch, lengths)
    result, own_frames, _ = cropped(batch, lengths)
    _, expected, _ = unpadded(batch, lengths)
    assert frames.tolist() == [whole.size(1)] * len(lengths)
    assert own_frames.tolist() == expected.tolist()
    assert result.size(1) == own_frames.max() < whole.size(1)
    torch.testing.assert_close(result, whole[:, : result.size(1)], rtol=0, atol=0)


def test_audio_without_padding_equals_transformers_layers(tmp_path, no_gradients):
    """On the audio's part of the window's features and positions."""
    theirs = tiny_whisper(tmp_path, encoder_layers=2).model.encoder
    encoder = HFWhisperEncoder(whisper_model=str(tmp_path), window="audio").eval()
    lengths = [160, 319, 320, 4321, 479_999, 30 * 16000]
    batch = padded_noise(lengths)
    result, sizes, _ = encoder(batch, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        hidden = features_of(batch[row, :length].numpy())[:, :, : length // HOP_SAMPLES]
        for convolution in (theirs.conv1, theirs.conv2):
            hidden = torch.nn.functional.gelu(convolution(hidden))
        hidden = hidden.transpose(1, 2)
        hidden = hidden + theirs.embed_positions.weight[: hidden.size(1)]
        for layer in theirs.layers:
            hidden = layer(hidden, None)
        expected = theirs.layer_norm(hidden)[0]
        assert int(sizes[row]) == len(expected) == (length // HOP_SAMPLES + 1) // 2
        torch.testing.assert_close(result[row, : len(expected)], expected, rtol=0, atol=1e-4)


def test_gradients_of_a_batch_are_those_of_single_utterances():
    encoder = tiny_encoder(0, window="audio").train()
    lengths = [HOP_SAMPLES, 4321, 16000]
    batch = torch.stack([noise(row, 16000) for row in range(len(lengths))])

    def gradients(rows):
        encoder.zero_grad()
        for chosen in rows:
            some = torch.tensor([lengths[row] for row in chosen])
            encoder_out, sizes, _ = encoder(batch[chosen, : some.max()], some)
            inside = torch.arange(encoder_out.size(1)) < sizes[:, None]
            (encoder_out * inside[:, :, None]).pow(3).sum().backward()
        named = encoder.whisper.named_parameters()
        return {name: weight.grad.clone() for name, weight in named if weight.requires_grad}

    together, alone = gradients([[0, 1, 2]]), gradients([[0], [1], [2]])
    assert "conv1.weight" in together
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, alone[name], rtol=1e-3, atol=1e-3, msg=name)
        assert gradient.norm() > 0 or name.endswith("k_proj.bias"), name


def test_default_window(tmp_path):
    save_tiny_whisper(tmp_path)
    assert tiny_encoder(0).window == "audio"
    assert HFWhisperEncoder(whisper_model=str(tmp_path)).window == "whisper"


def test_too_long_or_short_audio_is_refused():
    encoder = tiny_encoder(0)
    window = encoder.window_samples
    assert window == 100 * 2 * HOP_SAMPLES
    encoder(noise(0, window)[None], torch.tensor([window]))
    with pytest.raises(ValueError, match="2.00 s is longer"):
        encoder(noise(0, window + 1)[None], torch.tensor([window + 1]))
    assert_refused("159 samples; allowed: 160", encoder, noise(0, 159)[None], torch.tensor([159]))


def test_specaug_changes_training_only(no_gradients):
    conf = {
        "apply_time_warp": False, "apply_time_mask": False,
        "freq_mask_width_range": [10, 30], "num_freq_mask": 2,
    }  # fmt: skip
    encoder = tiny_encoder(0, use_specaug=True, specaug_conf=conf)
    samples, lengths = noise(0, 8000)[None], torch.tensor([8000])
    still = encoder(samples, lengths)[0]
    assert torch.equal(still, encoder(samples, lengths)[0])
    assert not torch.equal(still, encoder.train()(samples, lengths)[0])


@refuses(
    ({"num_blok": 2}, "encoder_conf: unknown option 'num_blok'.*did you mean 'num_blocks'"),
    ({"window": "silence"}, "encoder_conf.window: 'silence'.*allowed: whisper, audio"),
    ({"subsampling": 3}, "encoder_conf.subsampling: '3'.*allowed: 2, 4"),
    ({"input_size": 80}, "input_size: 80; allowed: 1, with frontend: null"),
)
def test_invalid_options_are_refused(options):
    HFWhisperEncoder(**options)
