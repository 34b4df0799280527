"""Acceptance rules on hand-made logits and on random ones."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_medusa.search.acceptance import build_rule, exact, likelihood, threshold, top_m, typical
from espnet_medusa.search.options import SearchOptions

seeded = settings(derandomize=True, deadline=None)


def logits_of(*rows) -> torch.Tensor:
    return torch.tensor(rows).log()


@st.composite
def judged(draw, num_ids=8, num_rows=6):
    """Logits (E, V) with ties and forbidden tokens (not all), and tokens (E,)."""
    value = st.sampled_from([-math.inf, -2.0, -0.5, 0.0, 0.0, 1.5, 3.0])
    ids = draw(st.integers(1, num_ids))
    row = st.lists(value, min_size=ids, max_size=ids).filter(lambda row: max(row) > -math.inf)
    rows = draw(st.lists(row, min_size=1, max_size=num_rows))
    token = st.integers(0, ids - 1)
    tokens = draw(st.lists(token, min_size=len(rows), max_size=len(rows)))
    return torch.tensor(rows), torch.tensor(tokens)


def test_exact_allows_the_best_token_only():
    logits = logits_of([0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7])
    assert exact(logits, torch.tensor([0, 1, 2])).tolist() == [True, True, True]
    assert exact(logits, torch.tensor([1, 1, 0])).tolist() == [False, True, False]
    assert exact(logits, torch.tensor([1, 0, 0])).tolist() == [False, False, False]


def test_typical_threshold_follows_the_entropy():
    sure, unsure = [0.98, 0.01, 0.01], [0.4, 0.35, 0.25]
    logits = logits_of(sure, unsure)
    entropy = -sum(p * math.log(p) for p in unsure)
    bound = 0.8 * math.exp(-entropy)
    assert 0.25 < bound < 0.35
    assert typical(logits, torch.tensor([1, 1]), 1.0, 0.8).tolist() == [False, True]
    assert typical(logits, torch.tensor([0, 2]), 1.0, 0.8).tolist() == [True, False]


def test_epsilon_caps_the_threshold():
    logits = logits_of([0.85, 0.1, 0.05], [0.85, 0.1, 0.05])
    allowed = typical(logits, torch.tensor([1, 2]), epsilon=0.09, alpha=1.0)
    assert allowed.tolist() == [True, False]


def test_top_m_allows_the_m_best():
    logits = logits_of(*[[0.1, 0.4, 0.2, 0.3]] * 4)
    tokens = torch.arange(4)
    assert top_m(logits, tokens, 1).tolist() == [False, True, False, False]
    assert top_m(logits, tokens, 2).tolist() == [False, True, False, True]
    assert top_m(logits, tokens, 3).tolist() == [False, True, True, True]
    assert top_m(logits, tokens, 9).tolist() == [True, True, True, True]


def test_forbidden_tokens_are_never_accepted():
    logits = torch.tensor([[-math.inf, 1.0, -math.inf]])
    for options in [SearchOptions(acceptance="exact"), SearchOptions(acceptance="typical")]:
        assert build_rule(options).allowed(logits, torch.tensor([0])).tolist() == [False]
    assert top_m(logits.expand(3, -1), torch.arange(3), 3).tolist() == [False, True, False]


def test_threshold_uses_the_draft_probability_only():
    log_probs = torch.tensor([0.9, 0.5, 0.49, 0.0]).log()
    assert threshold(log_probs, 0.5).tolist() == [True, True, False, False]
    assert threshold(torch.zeros(1), 1.0).tolist() == [True]
    rule = build_rule(SearchOptions(acceptance="threshold", threshold=0.4))
    assert not rule.verifies
    assert rule.accepts_draft(log_probs).tolist() == [True, True, True, False]


def test_likelihood_is_the_probability_over_allowed_tokens():
    logits = logits_of([0.3, 0.1, 0.4], [0.3, 0.1, 0.4])  # sum: 0.8
    assert likelihood(logits, torch.tensor([0, 1]), 0.3).tolist() == [True, False]
    assert likelihood(logits, torch.tensor([0, 1]), 0.12).tolist() == [True, True]
    assert likelihood(logits, torch.tensor([2, 0]), 0.49).tolist() == [True, False]
    forbidden = torch.tensor([[-math.inf, 1.0, -math.inf]])
    assert likelihood(forbidden.expand(3, -1), torch.arange(3), 0.0).tolist() == [
        False,
        True,
        False,
    ]


@seeded
@given(judged(), st.sampled_from([0.0, 0.1, 0.3, 0.51, 1.5]))
def test_likelihood_is_its_formula(case, least):
    logits, tokens = case
    allowed = likelihood(logits, tokens, least)
    for row, token, accepted in zip(logits.double().exp(), tokens, allowed, strict=True):
        probability = float(row[token] / row.sum())
        assert accepted == (probability >= least and probability > 0)
    if least > 0.5:
        assert not (allowed & ~exact(*case)).any()


@seeded
@given(judged())
def test_exact_is_top_1(case):
    assert torch.equal(exact(*case), top_m(*case, 1))


@seeded
@given(judged(), st.integers(1, 9))
def test_top_m_grows_with_m_and_ranks_as_sorting_does(case, m):
    logits, tokens = case
    allowed = top_m(logits, tokens, m)
    assert (top_m(logits, tokens, m + 1) | ~allowed).all()
    for row, token, accepted in zip(
        logits.tolist(), tokens.tolist(), allowed.tolist(), strict=True
    ):
        ranked = sorted(range(len(row)), key=lambda index: (-row[index], index))
        assert accepted == (token in ranked[:m] and row[token] > -math.inf)


@seeded
@given(judged(), st.floats(0.01, 1.0), st.floats(0.01, 2.0))
def test_typical_is_its_formula(case, epsilon, alpha):
    logits, tokens = case
    allowed = typical(logits, tokens, epsilon, alpha).tolist()
    for row, token, accepted in zip(logits.tolist(), tokens.tolist(), allowed, strict=True):
        weights = [math.exp(logit) for logit in row]
        probs = [weight / sum(weights) for weight in weights]
        entropy = -sum(p * math.log(p) for p in probs if p > 0)
        bound = min(epsilon, alpha * math.exp(-entropy))
        # float32 and the 1e-5 of the implementation decide cases close to the bound
        if abs(probs[token] - bound) > 1e-3:
            assert accepted == (probs[token] > bound)


@seeded
@given(judged(), st.sampled_from(["exact", "typical", "top_m"]))
def test_each_draft_is_judged_independently(case, name):
    rule = build_rule(SearchOptions(acceptance=name, top_m=2))
    assert rule.verifies
    logits, tokens = case
    alone = [rule.allowed(logits[i : i + 1], tokens[i : i + 1]) for i in range(len(tokens))]
    assert torch.equal(rule.allowed(logits, tokens), torch.cat(alone))


@pytest.mark.parametrize("name", ["exact", "typical", "top_m"])
def test_no_drafts(name):
    rule = build_rule(SearchOptions(acceptance=name))
    none = rule.allowed(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long))
    assert none.dtype == torch.bool and none.shape == (0,)


@pytest.mark.parametrize(
    ("loose", "strict"),
    [
        ({"acceptance": "top_m", "top_m": 2}, {"acceptance": "top_m", "top_m": 1}),
        ({"acceptance": "typical"}, {"acceptance": "typical", "typical_epsilon": 0.5}),
        (
            {"acceptance": "typical", "typical_epsilon": 1.0, "typical_alpha": 0.1},
            {"acceptance": "typical", "typical_epsilon": 1.0},
        ),
        ({"acceptance": "top_m"}, {"acceptance": "exact"}),
    ],
)
def test_each_option_changes_the_rule(loose, strict):
    logits, tokens = logits_of([0.9, 0.1]), torch.tensor([1])
    assert build_rule(SearchOptions(**loose)).allowed(logits, tokens).tolist() == [True]
    assert build_rule(SearchOptions(**strict)).allowed(logits, tokens).tolist() == [False]
