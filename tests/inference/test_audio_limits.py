"""Which arrays a model accepts."""

from argparse import Namespace

import numpy as np
import pytest
import torch
from refusals import assert_refused

from espnet_medusa.inference.audio_batch import AudioLimits, audio_limits


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_samples_as_loud_as_files_may_be(dtype):
    limits = AudioLimits(16000)
    for peak in (0.0, 1.0, 31.0):
        assert limits.read(np.array([0, -peak], dtype)).abs().max() == peak
    assert len(limits.read(np.zeros(0, dtype))) == 0, "other checks refuse it"
    message = "speech: reaches an amplitude of 20000; allowed: samples in .-1, 1.; divide"
    assert_refused(message, limits.read, np.array([0, -20000], dtype))
    assert_refused(message, limits.check_values, torch.tensor([[20000.0, 0]]))


def test_features_and_scaled_models_have_other_amplitudes():
    assert AudioLimits(100, feature_size=2).read(np.full((3, 2), 1e3)).max() == 1e3
    config = Namespace(frontend="default", frontend_conf={}, speech_volume_normalize=32768.0)
    limits = audio_limits(torch.nn.Identity(), config)
    assert limits.read(np.array([32768.0])).item() == 32768
    assert_refused("amplitude of 65536", limits.read, np.array([65536.0]))
