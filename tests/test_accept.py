"""Acceptance rules on hand-made logits."""

import math

import pytest
import torch

from espnet_medusa.accept import (
    AcceptanceOptions,
    accepted_lengths,
    build_rule,
    exact,
    typical,
)


def logits_of(*rows) -> torch.Tensor:
    return torch.tensor([list(rows)]).log()


def test_exact_allows_the_best_token_only():
    logits = logits_of([0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7])
    assert exact(logits, torch.tensor([[0, 1, 2]])).tolist() == [[True, True, True]]
    assert exact(logits, torch.tensor([[1, 1, 0]])).tolist() == [[False, True, False]]


def test_typical_threshold_follows_the_entropy():
    sure, unsure = [0.98, 0.01, 0.01], [0.4, 0.35, 0.25]
    logits = logits_of(sure, unsure)
    entropy = -sum(p * math.log(p) for p in unsure)
    bound = 0.8 * math.exp(-entropy)
    assert 0.25 < bound < 0.35
    allowed = typical(logits, torch.tensor([[1, 1]]), epsilon=1.0, alpha=0.8)
    assert allowed.tolist() == [[False, True]]
    assert typical(logits, torch.tensor([[0, 2]]), 1.0, 0.8).tolist() == [[True, False]]


def test_epsilon_caps_the_threshold():
    logits = logits_of([0.85, 0.1, 0.05])
    assert typical(logits, torch.tensor([[1]]), epsilon=0.09, alpha=1.0).tolist() == [[True]]
    assert typical(logits, torch.tensor([[2]]), epsilon=0.09, alpha=1.0).tolist() == [[False]]


@pytest.mark.parametrize(
    ("allowed", "length"),
    [([1, 1, 1], 3), ([0, 1, 1], 0), ([1, 0, 1], 1), ([1, 1, 0], 2), ([], 0)],
)
def test_a_chain_stands_up_to_the_first_refusal(allowed, length):
    table = torch.tensor([allowed], dtype=torch.bool).reshape(1, len(allowed))
    assert accepted_lengths(table).tolist() == [length]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (AcceptanceOptions("exakt"), "acceptance: 'exakt'.*did you mean 'exact'.*exact, typical"),
        (AcceptanceOptions("typical", typical_alpha=0.0), "typical_alpha: 0.0; allowed: above 0"),
        (AcceptanceOptions("typical", typical_epsilon=1.5), "typical_epsilon: 1.5; allowed"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build_rule(options)
