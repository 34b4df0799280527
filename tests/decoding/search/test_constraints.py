"""Constraints against transformers' processors, one position at a time."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from transformers.generation import logits_process

from espnet_medusa.decoding.search.constraints import Constraints, build_constraints
from espnet_medusa.decoding.search.search_options import SearchOptions

V, EOS, PROMPT = 11, 7, 3
WORDS = [token for token in range(V) if token != EOS]


def reference(options, scores, length, min_length):
    """(V,) to (V,): transformers' processors at one position, and forced tokens."""
    processors = logits_process.LogitsProcessorList()
    if min_length is not None:
        processors.append(logits_process.MinNewTokensLengthLogitsProcessor(PROMPT, min_length, EOS))
    penalty = options.exponential_decay_length_penalty
    if penalty is not None:
        processors.append(logits_process.ExponentialDecayLengthPenalty(penalty, EOS, PROMPT))
    if options.suppress_tokens:
        processors.append(logits_process.SuppressTokensLogitsProcessor(options.suppress_tokens))
    forced, begin = options.forced_prefix or [], options.begin_suppress_tokens
    if begin:
        first = PROMPT + len(forced)
        processors.append(logits_process.SuppressTokensAtBeginLogitsProcessor(begin, first))
    if length < len(forced):
        only = torch.full_like(scores, -math.inf)
        only[forced[length]] = scores[forced[length]]
        return only
    return processors(torch.zeros(1, PROMPT + length, dtype=torch.long), scores[None])[0]


@st.composite
def cases(draw):
    only_penalty = draw(st.booleans())
    most = 0 if only_penalty else 4
    suppressed = draw(st.lists(st.sampled_from(WORDS), max_size=most))
    begin = draw(st.lists(st.integers(0, V - 1), max_size=most))
    left = [token for token in WORDS if token not in suppressed]
    forced = draw(st.lists(st.sampled_from(left), max_size=min(most, 3)))
    start = st.integers(0, 6) | st.integers(0, 6).map(float)
    factor = st.sampled_from([1.01, 0.5, 1.0, 1.1, 3.0])
    penalty = st.tuples(start, factor).map(list)
    penalty = draw(penalty if only_penalty else st.none() | penalty)
    options = SearchOptions(
        suppress_tokens=suppressed,
        begin_suppress_tokens=begin or None,
        forced_prefix=forced or None,
        exponential_decay_length_penalty=penalty,
    )
    rows = draw(st.integers(1, 6))
    numbers = st.lists(st.integers(0, 12), min_size=rows, max_size=rows)
    lengths = draw(numbers)
    min_lengths = draw(st.none() | numbers)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    scores = 5 * torch.randn(rows, V, generator=generator)
    if draw(st.booleans()):
        scores = scores.log_softmax(dim=-1)
    if draw(st.booleans()):
        scores[:, [1, EOS]] = -math.inf
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    return options, scores.to(dtype), lengths, min_lengths


@settings(derandomize=True, deadline=None, max_examples=300)
@given(cases())
def test_all_rows_at_once_are_transformers_one_by_one(case):
    options, scores, lengths, min_lengths = case
    before = scores.clone()
    least = None if min_lengths is None else torch.tensor(min_lengths)
    constrained = build_constraints(options, V, EOS).apply(scores, torch.tensor(lengths), least)
    assert torch.equal(scores, before)
    rows = zip(scores, lengths, min_lengths or [None] * len(scores), strict=True)
    expected = [reference(options, *row) for row in rows]
    assert constrained.dtype == scores.dtype
    assert torch.equal(constrained, torch.stack(expected))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(cases(), st.lists(st.integers(0, V - 1), max_size=6), st.integers(0, 6))
def test_allowed_tokens_have_a_score(case, tokens, min_length):
    options, *_ = case
    places = [reference(options, torch.zeros(V), place, min_length) for place in range(len(tokens))]
    scores = [float(row[token]) for row, token in zip(places, tokens, strict=True)]
    expected = [*scores, -math.inf].index(-math.inf)
    assert build_constraints(options, V, EOS).count_allowed(tokens, min_length) == expected


def test_empty_constraints_return_the_scores():
    options = ("suppress_tokens", "forced_prefix", "exponential_decay_length_penalty")
    constraints = build_constraints(SearchOptions(**dict.fromkeys(options, [])), V, EOS)
    assert constraints.is_empty and Constraints(EOS).is_empty
    scores = torch.zeros(2, V)
    assert constraints.apply(scores, torch.tensor([0, 1])) is scores


def test_a_huge_penalty_is_finite():
    options = SearchOptions(exponential_decay_length_penalty=[0, 10.0])
    scores = torch.tensor([[0.0, 1.0], [-1.0, 1.0]])
    constrained = build_constraints(options, 2, 0).apply(scores, torch.tensor([400, 400]))
    assert constrained[0, 0] == 0.0 and constrained[1, 0] > 1e38


BAD_PENALTIES = [
    [140], [1, 2, 3], 140, [-1, 1.01], [1.5, 1.01], [140, 0.0], [140, -1], [140, math.nan],
    [140, math.inf], [math.inf, 1.01], [math.nan, 1.01], ["140", 1.01], "140",
]  # fmt: skip
PENALTY = "exponential_decay_length_penalty"


@refuses(
    *(({PENALTY: one}, r"length_penalty: .*; allowed: \[start, factor\]") for one in BAD_PENALTIES),
    ({"suppress_tokens": [4, 11]}, "suppress_tokens: 11; allowed: .* ids, 0 to 10"),
    ({"suppress_tokens": [4, EOS]}, "suppress_tokens: 7 is the end symbol"),
    ({"suppress_tokens": 4}, "suppress_tokens: 4; allowed: a list of token ids"),
    ({"suppress_tokens": WORDS, "begin_suppress_tokens": [EOS]}, "all 11 ids; allowed: fewer"),
    ({"begin_suppress_tokens": [-1]}, "begin_suppress_tokens: -1; allowed"),
    ({"begin_suppress_tokens": [1.5]}, "begin_suppress_tokens: 1.5; allowed"),
    ({"forced_prefix": ["a"]}, "forced_prefix: 'a'; allowed"),
    ({"forced_prefix": [2, EOS]}, "forced_prefix: 7 is the end symbol; allowed"),
    ({"forced_prefix": [2, 3], "suppress_tokens": [3]}, "3 is in suppress_tokens; allowed"),
)
def test_bad_tokens_and_penalties_are_refused(options):
    build_constraints(SearchOptions(**options), V, EOS)
