"""Greedy hypotheses of a CTC branch and the entropies of its frames."""

import math

import pytest
import torch

from espnet_medusa.draft.ctc_hypothesis import frame_entropies, greedy_hypothesis


def frames(*rows):
    return torch.tensor(rows).log()


def test_greedy_hypothesis_merges_frames_and_drops_blanks():
    hypothesis = greedy_hypothesis(
        frames(
            [0.7, 0.1, 0.1, 0.1],
            [0.2, 0.6, 0.1, 0.1],
            [0.1, 0.8, 0.0, 0.1],
            [0.6, 0.4, 0.0, 0.0],
            [0.1, 0.5, 0.4, 0.0],
            [0.1, 0.2, 0.1, 0.6],
            [0.0, 0.1, 0.9, 0.0],
            [0.8, 0.1, 0.1, 0.0],
            [0.6, 0.2, 0.1, 0.1],
        ),
        blank=0,
        eos=3,
    )
    assert hypothesis.tokens[:, 0].tolist() == [1, 1, 2, 3], (
        "a blank separates equal tokens, 3 is the end token"
    )
    assert hypothesis.probabilities[:, 0].tolist() == pytest.approx([0.7, 0.5, 0.9, 0.7])
    assert hypothesis.tokens[1, 1] == 2 and hypothesis.probabilities[1, 1] == pytest.approx(0.4)
    assert hypothesis.tokens[3, 1:].tolist() == [-1, -1]
    assert (hypothesis.probabilities.sum(-1) <= 1).all()


def test_an_empty_hypothesis_has_the_end_token_only():
    hypothesis = greedy_hypothesis(frames([0.9, 0.1], [0.7, 0.3]), 0, 1)
    assert hypothesis.tokens[:, 0].tolist() == [1]
    assert hypothesis.probabilities[0, 0] == pytest.approx(0.8)


def test_entropies_of_frames():
    likely = [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [1 / 3, 1 / 3, 1 / 3], [0.7, 0.2, 0.1]]
    expected = [math.log(2), 0.0, math.log(3), 0.801818]
    assert frame_entropies(frames(*likely)).tolist() == pytest.approx(expected, abs=1e-6)
    assert frame_entropies(frames(*likely)[:0]).shape == (0,)


def test_entropies_of_random_frames_in_any_precision():
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(9, 40, generator=generator).mul(4).log_softmax(-1)
    expected = [-sum(p * math.log(p) for p in row) for row in log_probs.double().exp().tolist()]
    assert frame_entropies(log_probs).tolist() == pytest.approx(expected, rel=1e-5)
    rounded = frame_entropies(log_probs.bfloat16())
    assert rounded.dtype == torch.float32
    assert rounded.tolist() == pytest.approx(expected, rel=0.05)
