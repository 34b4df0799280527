"""Lookahead depths follow acceptance and costs; texts do not depend on them."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from beam_oracle import make_weights
from cases import cases, combinations
from searches import decode, decode_exactly, drafted_by, our_search, with_draft
from tiny import EOS, random_encoder_out, shared_decoder

from espnet_medusa.decoding.search.drafting import lookahead
from espnet_medusa.decoding.search.drafting.lookahead import ByAcceptance, ByCost, DraftShape
from espnet_medusa.decoding.search.greedy import GreedyState
from espnet_medusa.decoding.search.scores import UtteranceScorers
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.search.state import Draft
from espnet_medusa.decoding.tree.prefix import Prefix


def after(limit, depth, accepted):
    state = GreedyState(Prefix(0), UtteranceScorers(), 100)
    state.draft = Draft([], depth=depth, limit=limit, accepted_steps=accepted)
    state.statistics.count_drafts(max(depth, 1), accepted)
    return state


@cases(
    (math.inf, 0, 0, 5),
    (5, 5, 5, 6),
    (5, 5, 4, 5),  # 0.8 is not above 0.8
    (5, 5, 2, 5),
    (5, 5, 1, 4),
    (10, 10, 3, 10),  # 0.3 is not below 0.3
    (2, 2, 0, 2),  # bounds
    (8, 8, 8, 8),
    (6, 3, 3, 7),  # ended early, all accepted
    (4, 0, 0, 4),  # nothing drafted
)
def test_depth_by_acceptance(limit, depth, accepted, expected):
    assert ByAcceptance(2, max(8, depth), 5).depth(after(limit, depth, accepted)) == expected


def test_step_acceptance_begins_with_an_expectation():
    assert lookahead.step_acceptance(0, 0) == pytest.approx(lookahead.EXPECTED)
    assert 0 < lookahead.step_acceptance(0, 1000) < 0.01
    assert lookahead.step_acceptance(400, 600) == pytest.approx(4 / 6, abs=1e-3)
    assert 0.99 < lookahead.step_acceptance(1000, 0) < 1  # never tried, as with the threshold rule


def test_depth_by_cost_is_the_best_of_all():
    """Either any number of steps is accepted, or, as with CTC after an error, all or none."""
    rng = random.Random(0)
    for _ in range(200):
        most = rng.randint(1, 12)
        chosen, of_step = ByCost(rng.randint(0, most), most), rng.uniform(0.001, 1)
        of_token = rng.choice([0.0, 0.3])
        for steps in [4] * 3 if of_token == 0.0 else [0, 3, 6] * 10:
            tokens = 2.0 if of_token == 0.0 else rng.uniform(1.0, 7.0)
            chosen.measure(1.0 + tokens * of_token, of_step * steps, steps, tokens)
        drafts = rng.choices(rng.choice([range(most + 1), [0, most]]), k=rng.randint(0, 20))
        for accepted in drafts:
            chosen.depth(after(most, most, accepted))
        costs = chosen.costs.seconds()
        near = {"rel": 0.2, "abs": 0.05} if of_token else {}
        assert costs == pytest.approx((1.0, of_step, of_token), **near)
        usual = lookahead.step_acceptance(sum(chosen.accepted), sum(chosen.tried))
        pairs = zip(chosen.accepted, chosen.tried, strict=True)
        shares = [lookahead.step_acceptance(*counts, usual) for counts in pairs]
        for step, tried in enumerate(chosen.tried):
            assert (tried > 0) == any(accepted >= step for accepted in drafts)

        def rate(steps, shares=shares, costs=costs):
            tokens = 1 + sum(math.prod(shares[:step]) for step in range(1, steps + 1))
            return tokens / (costs[0] + steps * costs[1] + tokens * costs[2])

        best = max(range(chosen.least, most + 1), key=rate)
        assert rate(chosen.depth(after(0, 0, 0))) == pytest.approx(rate(best))


def test_if_no_depth_is_worth_its_cost_an_utterance_tries_once():
    chosen = ByCost(0, 9)
    for _ in range(300):
        chosen.measure(1.0, 9.0, 3, 1.5)
    assert chosen.depth(after(3, 3, 0)) == 0
    assert chosen.depth(GreedyState(Prefix(0), UtteranceScorers(), 100)) == 1


def test_costs_are_those_of_weighted_least_squares():
    rng, costs = np.random.default_rng(0), lookahead.Costs()
    steps, tokens, seconds = rng.uniform(0, 90, (3, 50))
    seconds += 2 * steps + 3 * tokens + 500
    for row in zip(seconds, steps, tokens, strict=True):
        costs.add(row[0], 0.0, *row[1:])
    root = lookahead.FORGETTING ** (np.arange(49, -1, -1) / 2)
    sizes = np.stack([np.ones(50), steps, tokens], axis=1)
    expected = np.linalg.lstsq(sizes * root[:, None], seconds * root, rcond=None)[0]
    assert costs.seconds() == pytest.approx(tuple(expected), rel=1e-3)


def test_an_utterance_starts_with_the_rates_of_earlier_ones():
    chosen = ByAcceptance(1, 12, 2)
    new = GreedyState(Prefix(0), UtteranceScorers(), 100)
    assert chosen.depth(new) == 2
    for _ in range(50):
        chosen.depth(after(9, 9, 9))
    assert chosen.depth(new) == 10
    by_cost = ByCost(1, 10)
    assert by_cost.depth(new) == 5, "nothing measured yet"
    by_cost.measure(1.0, 0.5, 5, 3.0)
    hopeful = by_cost.depth(new)
    for _ in range(50):
        by_cost.depth(after(5, 5, 0))
    assert by_cost.depth(new) < hopeful


def lookaheads():
    return [ByAcceptance(1, 7, 3), ByAcceptance(0, 9, 9), ByCost(1, 8), ByCost(0, 5)]


@combinations(kind=["near", "other"], number=range(4))
def test_lookahead_does_not_change_greedy_text(number, kind):
    rng = random.Random(f"{number} {kind}")
    chosen, (module, decoder) = lookaheads()[number], drafted_by(number, kind)
    encoder_out, lengths = random_encoder_out(number, [8, 3, 11, 6])
    shape = DraftShape(chosen.most, rng.choice([1, 3]), lookahead=chosen)
    most, least = [40, 25, 7, 50], [30, 0, 0, 40]
    states = decode_exactly(module, encoder_out, lengths, most, least, decoder, shape=shape)
    assert all(len(state.statistics.drafted) <= chosen.most for state in states)


@combinations(ctc=[0.0, 0.3], number=range(4))
def test_lookahead_does_not_change_the_nbest_list(number, ctc):
    _, decoder = drafted_by(number, "near")
    encoder_out, lengths = random_encoder_out(number, [14, 9])
    nbest, chosen = [], lookaheads()[number]
    for shape in (DraftShape(0), DraftShape(chosen.most, 4, lookahead=chosen)):
        search = our_search(decoder, number, make_weights(ctc=ctc), 4, shape)
        states = search(encoder_out, lengths, torch.tensor([[EOS]] * 2), LengthLimits(-12))
        nbest.append([[ended.tokens for ended in state.ended] for state in states])
    assert nbest[0] == nbest[1]


def test_depth_grows_with_accepted_drafts_per_utterance():
    module = shared_decoder(3, "none")
    encoder_out, lengths = random_encoder_out(3, [12, 9])

    def drafted_steps(draft, rows):
        shape, most = DraftShape(9, lookahead=ByAcceptance(1, 9, 2)), [45] * len(rows)
        audio = encoder_out[rows], lengths[rows]
        states = decode(with_draft(module, draft), *audio, most, min_lengths=most, shape=shape)
        return [state.statistics.drafted for state in states]

    grown = drafted_steps(module, [0])[0]
    assert len(grown) > 5, "2, 3, 4, ... steps"
    assert all(shallow > deep for shallow, deep in itertools.pairwise(grown[2:])), grown
    other = shared_decoder(99, "none")
    alone = [drafted_steps(other, [row])[0] for row in (0, 1)]
    assert len(alone[0]) == 2 and alone[0][1] < alone[0][0], "down to a step and no further"
    assert drafted_steps(other, [0, 1]) == alone
