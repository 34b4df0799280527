"""The search ends when the n-best list is final: the same list as ESPnet's, fewer calls."""

import functools
import math
import random

import torch
from beam_oracle import UncachedScorer, espnet_search, make_weights
from cases import cases, combinations
from refusals import assert_refused
from searches import compare, our_search
from tiny import EOS, VOCAB_SIZE, random_encoder_out, shared_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.beam import BeamState
from espnet_medusa.decoding.search.build import SearchModel, build_beam
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.ranking import Ranking
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions
from espnet_medusa.decoding.search.state import EndedHypothesis, Hypothesis
from espnet_medusa.decoding.tree.prefix import Prefix

WEIGHTS = {
    "decoder": {},
    "CTC, LM": {"ctc": 0.3, "lm": 0.4},
    "bonus": {"length_bonus": 0.6},
    "malus": {"length_bonus": -0.4, "ngram": 0.2},
}


@combinations(kind=WEIGHTS)
def test_fewer_calls_never_more(kind):
    """The first entries of ESPnet's n-best list; fewer requested entries take fewer calls."""
    weights, beam_size = make_weights(**WEIGHTS[kind]), 4
    decoder = shared_decoder(12, "recurrent", 4)
    encoder_out, lengths = random_encoder_out(12, [10, 8])
    total = dict.fromkeys((None, 6, 4, 2, 1), 0)
    espnet = espnet_search(UncachedScorer(decoder), 12, weights, beam_size)

    @functools.cache
    def searched(frames, **limits):
        return espnet(encoder_out[lengths == frames, :frames][0], **limits)

    def oracle(encoder_out, **limits):
        return searched(len(encoder_out), **limits)

    for limits in (LengthLimits(0.0), LengthLimits(0.9)):
        for depth in (0, 4):
            before, shape = [math.inf] * 2, DraftShape(depth, beam_size)
            for nbest in total:
                search = our_search(decoder, 12, weights, beam_size, shape, nbest=nbest)
                states = compare(search, encoder_out, lengths, oracle, limits)
                assert all(len(state.n_best) <= (nbest or math.inf) for state in states)
                calls = [state.statistics.decoder_calls for state in states]
                assert all(now <= then for now, then in zip(calls, before, strict=True))
                before, total[nbest] = calls, total[nbest] + sum(calls)
    assert total[1] < total[4] < total[None]


def running(*scores, length=2):
    prefixes = (Prefix(token, Prefix(0), length) for token in range(len(scores)))
    return [*map(Hypothesis, prefixes, scores)]


def ended(*scores, length=5):
    return [EndedHypothesis([], score, (), length) for score in scores]


@cases(
    (Ranking(None), 10, [-1.0, -2.0, -3.0]),
    (Ranking(4), 10, [-1.0, -2.0, -3.0]),
    (Ranking(3), 10, [-1.0, -2.0]),
    (Ranking(2), 10, [-1.0]),
    (Ranking(1), 10, []),
    (Ranking(1, 0.1), 10, [-1.0]),  # eight more tokens add at most 0.8
    (Ranking(1, math.inf), 10, [-1.0, -2.0, -3.0]),
    # The best ended rank is -0.125; -1.0 over ten tokens and the end would be -0.091.
    (Ranking(1, 0.0, True), 10, [-1.0]),
    (Ranking(1, 0.0, True), 4, []),
)
def test_hopeful_hypotheses(ranking, max_length, may_reach_nbest):
    going, finished = running(-1.0, -2.0, -3.0), ended(-2.5, -0.5, -1.5)
    remaining = ranking.may_reach_nbest(BeamState(Prefix(0), None, max_length), going, finished)
    assert [hypothesis.score for hypothesis in remaining] == may_reach_nbest


@combinations(normalize=[False, True], seed=range(5))
def test_hopeless_hypotheses_cannot_get_into_the_list(seed, normalize):
    """The best of all continuations ranks after the last entry."""
    rng, hopeless = random.Random(seed), 0
    for _ in range(300):
        gain, length, most = rng.choice([0.0, 0.3]), rng.randint(1, 6), rng.randint(7, 10)
        ranking = Ranking(rng.randint(1, 4), gain, normalize)
        # No token adds more than the gain.
        sofar = [gain * length - rng.uniform(0, 6) for _ in range(4)]
        sizes = [rng.randint(1, 6) for _ in range(rng.randint(0, 6))]
        finished = [EndedHypothesis([], gain * n - rng.uniform(0, 4), (), n + 1) for n in sizes]
        going = running(*sofar, length=length)
        remaining = ranking.may_reach_nbest(BeamState(Prefix(0), None, most), going, finished)
        hopeless += len(going) - len(remaining)
        for hypothesis in going:
            more = [
                EndedHypothesis([], hypothesis.score + gain * n, (), 1 + length + n + at_last)
                for n in range(1, most - length + 1)
                for at_last in {False, n == most - length}
            ]
            gets_in = any(entry in ranking.best([*finished, entry]) for entry in more)
            assert gets_in <= (hypothesis in remaining)
    assert hopeless > 50


@combinations(rule=[{}, {"acceptance": "threshold"}])
def test_nbest_option(rule):
    decoder = build_runtime(shared_decoder(12, "none"))

    def build(nbest):
        options = SearchOptions(draft_depth=0, **rule)
        model = SearchModel(decoder, VOCAB_SIZE, EOS, torch.device("cpu"))
        return build_beam(options, model, 3, nbest=nbest)

    for nbest in (1, 2, 3):
        assert (
            len(build(nbest)(*random_encoder_out(12, [9]), torch.tensor([[EOS]]))[0].n_best)
            == nbest
        )
    assert_refused(r"^nbest: 0 is too small; allowed: 1 or more", build, 0)


def test_equal_scores_keep_the_order_of_ending():
    finished = [*ended(-1.0), *ended(-1.0, length=7), *ended(-0.5)]
    assert Ranking(2).best(finished) == [finished[2], finished[0]]
    assert Ranking().best(finished) == [finished[2], *finished[:2]]
