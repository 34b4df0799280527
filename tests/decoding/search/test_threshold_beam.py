"""Threshold beam search against its definition, over plain token lists."""

import random
from dataclasses import replace
from operator import le

import pytest
import torch
from beam_oracle import UncachedScorer, espnet_search, make_weights
from cases import combinations
from refusals import assert_refused, refuses
from scripted import PathDecoder, PathProposer
from searches import CONSTRAINTS, PROMPT, assert_same_alone, compare, constraints_of, decode
from threshold_oracle import Forward, Setting, assert_same, by_definition, find
from tiny import EOS, VOCAB_SIZE, random_encoder_out, shared_decoder, tiny_decoder, utterances

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.acceptance import build_rule
from espnet_medusa.decoding.search.beam import BeamStrategy
from espnet_medusa.decoding.search.build import SearchModel, build_beam
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.scores import Scorers
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions, check_options
from espnet_medusa.decoding.search.threshold_beam import ThresholdStrategy
from espnet_medusa.networks.espnet_compat import LengthBonus

HEADS = ["linear", "block", "recurrent", "attending", "latent", "llama projection", "llama latent"]
NOTHING_REACHES = 1.0
UNSURE = -1


def compare_with_definition(decoder, encoder_out, lengths, setting):
    lists, states = find(decoder, encoder_out, lengths, setting)
    for alone, nbest, state in zip(utterances(encoder_out, lengths), lists, states, strict=True):
        most, least = setting.limits.most(alone.size(1)), setting.limits.least(alone.size(1))
        expected, calls = by_definition(decoder, alone, setting, most, least)
        assert_same(nbest, expected)
        counts = state.statistics
        assert counts.decoder_calls == calls and counts.tokens == len([*nbest, ((),)][0][0])
        assert counts.accepted == sorted(counts.accepted, reverse=True)
        assert len(counts.accepted) == len(counts.drafted) <= setting.depth
        assert all(map(le, counts.accepted, counts.drafted))
        assert not counts.drafted or counts.drafted[0] <= setting.beam_size * calls
    return lists, states


@combinations(heads=HEADS, seed=range(8))
def test_nbest_equals_the_definition(seed, heads):
    rng = random.Random(f"{seed} {heads}")
    encoder_out, lengths = random_encoder_out(
        seed, [rng.randint(1, 9) for _ in range(rng.randint(1, 4))]
    )
    setting = Setting(
        beam_size=rng.randint(1, 5), threshold=rng.choice([1e-9, 0.2, 0.35, 0.5, 0.8]),
        depth=rng.randint(0, 5), limits=LengthLimits(rng.choice([0.0, 0.8, -1, -2, -5, -12])),
        constraints=constraints_of(**rng.choice([{}, *CONSTRAINTS])),
        normalize_length=rng.random() < 0.2, nbest=rng.choice([None, 1, 2, 7]),
    )  # fmt: skip
    compare_with_definition(shared_decoder(seed, heads, 5), encoder_out, lengths, setting)


@combinations(seed=range(4))
def test_minimum_lengths_fall_if_no_hypothesis_is_long_enough(seed):
    decoder = shared_decoder(seed, HEADS[seed % len(HEADS)], 4)
    encoder_out, lengths = random_encoder_out(seed, [8, 5])
    setting = Setting(3, 0.25, limits=LengthLimits(-8, -4))
    lists, _ = compare_with_definition(decoder, encoder_out, lengths, setting)
    assert all(len(tokens) > 4 for nbest in lists for tokens, _, _ in nbest)
    impossible = replace(setting, limits=LengthLimits(0.5, 0.9))
    # As in ESPnet, minlenratio falls by 0.1 until something is long enough.
    lists, states = find(decoder, encoder_out, lengths, impossible)
    for alone, nbest in zip(utterances(encoder_out, lengths), lists, strict=True):
        frames = alone.size(1)
        for tenths in range(9, 0, -1):
            least = int((0.9 - 0.1 * (9 - tenths)) * frames)
            expected, _ = by_definition(decoder, alone, setting, int(0.5 * frames), least)
            if expected:
                break
        assert expected
        assert_same(nbest, expected)


@combinations(heads=HEADS)
def test_a_draft_vocabulary(heads):
    """The heads' probabilities are normalized over the draft vocabulary."""
    vocabulary, constraints = torch.tensor([0, 3, 4, 7, EOS]), constraints_of(suppress_tokens=[3])
    setting = Setting(4, 0.2, constraints=constraints, vocabulary=vocabulary)
    accepted = 0
    for seed in range(2):
        decoder = shared_decoder(seed, heads, 4)
        _, states = compare_with_definition(decoder, *random_encoder_out(seed, [8, 5]), setting)
        accepted += sum(sum(state.statistics.accepted) for state in states)
    assert accepted > 0


@combinations(heads=["none", *HEADS], seed=range(4))
def test_without_accepted_drafts_the_nbest_list_is_espnets(seed, heads):
    decoder = shared_decoder(seed, heads, 4)
    limits = LengthLimits(random.Random(seed).choice([-1, -7, 0.8]))
    depth = build_runtime(decoder).num_heads
    search = Setting(1 + seed, NOTHING_REACHES, depth, limits).search(decoder)
    oracle = espnet_search(UncachedScorer(decoder), seed, make_weights(), 1 + seed)
    for state in compare(search, *random_encoder_out(seed, [9, 6, 12]), oracle, limits):
        assert not any(any(ended.heads) for ended in state.ended)
        assert sum(state.statistics.accepted) == 0


@combinations(heads=HEADS, seed=range(5))
def test_a_beam_of_one_is_greedy_search(seed, heads):
    rng = random.Random(f"{seed} {heads}")
    decoder = shared_decoder(seed, heads, 4)
    encoder_out, lengths = random_encoder_out(seed, [7, 1, 9])
    max_length = rng.choice([1, 2, 6, 30])
    threshold = rng.choice([1e-9, 0.2, 0.4, NOTHING_REACHES])
    # Greedy search renormalizes over allowed tokens, which changes acceptance at high thresholds.
    options = rng.choice(CONSTRAINTS[:4]) if threshold < 0.1 else {}
    setting = Setting(1, threshold, 4, LengthLimits(-max_length), constraints_of(**options))
    lists, states = find(decoder, encoder_out, lengths, setting)
    rule = build_rule(SearchOptions(acceptance="threshold", threshold=threshold))
    shape, most = DraftShape(setting.depth), [max_length] * 3
    greedy = decode(decoder, encoder_out, lengths, most, rule, shape=shape, **options)
    for nbest, state, plain in zip(lists, states, greedy, strict=True):
        [(tokens, heads_used, score)] = nbest
        assert [*tokens[: len(heads_used)]] == plain.tokens + [EOS] * plain.ended
        if not options:
            assert score == pytest.approx(plain.hypothesis.score, abs=1e-4)
        both = state.statistics, plain.statistics
        counts, expected = ((one.decoder_calls, one.nodes, sum(one.accepted)) for one in both)
        assert counts == expected


@combinations(seed=range(4))
def test_batch_equals_singles(seed):
    decoder = shared_decoder(seed, HEADS[seed % len(HEADS)], 4)
    setting, audio = Setting(3, 0.2, limits=LengthLimits()), random_encoder_out(seed, [14, 1, 9, 8])
    assert_same_alone(lambda rows, *some: find(decoder, *some, setting)[1], *audio)


def certain(path_tokens):
    """A proposer that drafts these tokens after the base head's, and repeats the last one.

    It has no draft for ``UNSURE``.
    """
    rows = 9.0 * torch.eye(VOCAB_SIZE + 1)[path_tokens, :VOCAB_SIZE]
    return PathProposer(lambda path: rows[min(len(path) - len(PROMPT), len(rows)) - 1])


def test_end_symbol_inside_a_draft_ends_without_a_further_call():
    decoder = shared_decoder(0, "none")
    encoder_out, lengths = random_encoder_out(0, [6])
    drafting = PathDecoder(build_runtime(decoder), certain([5, 7, EOS]))
    setting = Setting(2, 0.9, depth=6, constraints=constraints_of(begin_suppress_tokens=[EOS]))
    [nbest], [state] = find(drafting, encoder_out, lengths, setting)
    with torch.no_grad():
        base = Forward(decoder, encoder_out, setting).base(()).topk(2)
    sure = float(torch.log_softmax(9.0 * torch.eye(VOCAB_SIZE)[0], -1)[0])
    for (tokens, heads, score), gain, first in zip(nbest, *base, strict=True):
        assert tokens == (int(first), 5, 7, EOS) and heads == (0, 1, 2, 3)
        assert score == pytest.approx(float(gain) + 3 * sure, abs=1e-4)
    counts = state.statistics
    assert counts.decoder_calls == 1 and counts.nodes == len(PROMPT)
    assert counts.drafted == counts.accepted == [2, 2, 2]


def test_a_drafted_end_symbol_before_the_minimum_length_only_ends_the_draft():
    decoder, audio, nbest = shared_decoder(0, "none"), random_encoder_out(0, [6]), []
    for early in (EOS, UNSURE):
        drafting = PathDecoder(build_runtime(decoder), certain([5, 7, *[early] * 3, EOS]))
        [found], _ = find(drafting, *audio, Setting(3, 0.9, 6, LengthLimits(-9, -6)))
        nbest.append(found)
    assert nbest[0] and all(len(tokens) > 6 for tokens, _, _ in nbest[0])
    assert_same(*nbest)


def test_an_empty_hypothesis():
    decoder, setting = shared_decoder(0, "linear", 4), Setting(VOCAB_SIZE, 0.3, 4, LengthLimits(-3))
    [nbest], _ = compare_with_definition(decoder, *random_encoder_out(0, [3]), setting)
    assert (EOS,) in [tokens for tokens, _, _ in nbest]


def test_positions_run_out_before_the_maximum_length():
    decoder = shared_decoder(5, "recurrent", 7, max_target_positions=12)
    encoder_out, lengths = random_encoder_out(5, [6, 4])
    setting = Setting(3, 1e-9, 7, LengthLimits(-40))
    lists, _ = find(decoder, encoder_out, lengths, setting)
    room = 12 - len(PROMPT) + 1
    for alone, nbest in zip(utterances(encoder_out, lengths), lists, strict=True):
        assert_same(nbest, by_definition(decoder, alone, setting, room)[0])


def test_logits_are_computed_for_ends_of_hypotheses_only():
    drafting = PathDecoder(build_runtime(shared_decoder(0, "none")), certain([5]))
    rows, logits = [], drafting.logits
    drafting.logits = lambda hidden: rows.append(len(hidden)) or logits(hidden)
    setting = Setting(3, 0.9, 4, LengthLimits(-16), constraints_of(suppress_tokens=[0]))
    _, states = find(drafting, *random_encoder_out(0, [6, 4]), setting)
    # The prompts, then three hypotheses per utterance, five tokens longer after each call.
    assert rows[0] == 2 and max(rows) <= 6
    assert sum(rows) < sum(state.statistics.nodes for state in states) / 3


def build(decoder, beam_size=4, weights=(), **options):
    options = SearchOptions(**{"acceptance": "threshold", **options})
    check_options(options, beam_size)
    scorers = dict.fromkeys({*weights} - {"ctc"}, LengthBonus(VOCAB_SIZE))
    scorers = Scorers({"decoder": 1.0, **dict(weights)}, scorers, torch.nn.Identity())
    parts = build_runtime(decoder), VOCAB_SIZE, EOS, torch.device("cpu"), scorers
    return build_beam(options, SearchModel(*parts), beam_size)


def test_options_reach_the_search():
    decoder = shared_decoder(0, "linear", 4)
    encoder_out, lengths = random_encoder_out(0, [7])
    search = build(decoder, 2, **{"threshold": 0.2, "draft_depth": 2, "suppress_tokens": [1]})
    assert type(search.strategy) is ThresholdStrategy
    setting = Setting(2, 0.2, 2, constraints=constraints_of(suppress_tokens=[1]))
    [expected], _ = find(decoder, encoder_out, lengths, setting)
    state = search(encoder_out, lengths, torch.tensor([PROMPT]), setting.limits)[0]
    assert_same([(tuple(e.tokens), e.heads, e.score) for e in state.ended], expected)
    assert len(state.statistics.drafted) == 2
    assert type(build(decoder, acceptance="exact").strategy) is BeamStrategy
    assert build(decoder, draft_depth=0).planner.shape.depth == 0
    assert build(shared_decoder(0, "none")).planner.shape.depth == 0
    assert type(build(decoder, weights={"length_bonus": 0.0}).strategy) is ThresholdStrategy


@refuses(
    ({"acceptance": "typical"}, "acceptance: typical; allowed with search: beam: exact, thr"),
    ({"draft_width": 3}, "draft_width: 3; allowed with acceptance: threshold: 1"),
    ({"draft_budget": 9}, "draft_budget: 9; allowed with search: beam.*threshold: none"),
    ({"draft_depth": 5}, "draft_depth: 5; allowed: at most 4"),
    ({"medusa_choices": [1, 2]}, "medusa_choices: .*; allowed with search: greedy"),
    ({"weights": {"lm": 0.4}}, "lm_weight: 0.4; allowed: 0 "),
    ({"weights": {"length_bonus": 0.1}}, "penalty: 0.1; allowed"),
    ({"weights": {"ctc": 0.3}}, "ctc_weight: 0.3; allowed: 0 with .* threshold, as"),
)
def test_unsupported_options_are_refused(options):
    build(shared_decoder(0, "linear", 4), **options)


def test_untrained_heads_are_refused():
    decoder = tiny_decoder(0, "linear", 4)
    for parameter in decoder.heads.parameters():
        torch.nn.init.zeros_(parameter)
    assert_refused("acceptance: threshold; this model's heads were never", build, decoder)
