"""Acceptance rules on hand-made logits and on random ones."""

import math

import torch
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_medusa.decoding.search.acceptance import (
    build_rule,
    exact,
    likelihood,
    threshold,
    top_m,
    typical,
)
from espnet_medusa.decoding.search.search_options import SearchOptions

seeded = settings(derandomize=True, deadline=None)


@st.composite
def judged(draw, num_ids=8, num_rows=6):
    """Logits (E, V) with ties and forbidden tokens (not all), and tokens (E,)."""
    value = st.sampled_from([-math.inf, -2.0, -0.5, 0.0, 0.0, 1.5, 3.0])
    ids = draw(st.integers(1, num_ids))
    row = st.lists(value, min_size=ids, max_size=ids).filter(lambda row: max(row) > -math.inf)
    rows = draw(st.lists(row, min_size=1, max_size=num_rows))
    tokens = draw(st.lists(st.integers(0, ids - 1), min_size=len(rows), max_size=len(rows)))
    return torch.tensor(rows), torch.tensor(tokens)


def test_threshold_uses_the_draft_probability_only():
    log_probs = torch.tensor([0.9, 0.5, 0.49, 0.0]).log()
    assert threshold(log_probs, 0.5).tolist() == [True, True, False, False]
    assert threshold(torch.zeros(1), 1.0).tolist() == [True]
    rule = build_rule(SearchOptions(acceptance="threshold", threshold=0.4))
    assert not rule.verifies
    assert rule.accepts_draft(log_probs).tolist() == [True, True, True, False]


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
@given(judged(), st.integers(1, 9))
def test_top_m_grows_with_m_and_ranks_as_sorting_does(case, m):
    logits, tokens = case
    allowed = top_m(logits, tokens, m)
    assert (top_m(logits, tokens, m + 1) | ~allowed).all()
    assert torch.equal(exact(*case), top_m(*case, 1))
    rows = logits.tolist(), tokens.tolist(), allowed.tolist()
    for row, token, accepted in zip(*rows, strict=True):
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
    # The last slice is empty.
    alone = [rule.allowed(logits[i : i + 1], tokens[i : i + 1]) for i in range(len(tokens) + 1)]
    assert torch.equal(rule.allowed(logits, tokens), torch.cat(alone))


@seeded
@given(judged(), st.floats(0.01, 1.0), st.floats(0.01, 0.5))
def test_the_best_token_is_always_accepted(case, epsilon, alpha):
    options = {"typical_epsilon": epsilon, "typical_alpha": alpha}
    rules = [build_rule(SearchOptions(acceptance=name, **options)) for name in ("typical", "top_m")]
    # The largest vocabulary; equally probable tokens are the worst case of the typical rule.
    every = [case[0], torch.zeros(1, 69000), 1e-3 * torch.arange(69000.0)[None] % 1]
    for rule in rules:
        assert rule.accepts_best
        for logits in every:
            assert rule.allowed(logits, logits.argmax(dim=-1)).all()


@cases(
    ("top_m", {}, {"acceptance": "exact"}),
    ("top_m", {"top_m": 2}, {"top_m": 1}),
    ("typical", {}, {"typical_epsilon": 0.5}),
    ("typical", {"typical_epsilon": 1.0, "typical_alpha": 0.1}, {"typical_epsilon": 1.0}),
)
def test_each_option_changes_the_rule(acceptance, loose, strict):
    logits, tokens = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([1])
    for options, allowed in ((loose, True), (strict, False)):
        rule = build_rule(SearchOptions(**{"acceptance": acceptance} | options))
        assert rule.allowed(logits, tokens).tolist() == [allowed]
