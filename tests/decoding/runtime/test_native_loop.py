"""Greedy search in one call of the kernels equals the general loop, bit for bit."""

import random

import pytest
import torch
from cases import pairs
from chain_loops import (
    VOCAB_SIZE,
    RandomDepths,
    decode_both_ways,
    random_batch,
    random_decoder,
    random_search,
    with_texts,
)
from kernel_kinds import KINDS, some_threads, with_kernels
from tiny import EOS, random_encoder_out, tiny_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.acceptance import AcceptanceRule, exact
from espnet_medusa.decoding.search.constraints import build_constraints
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions

pytestmark = with_kernels


@pairs(kind=KINDS, seed=range(20), indirect=["kind"])
def test_the_same_as_the_general_loop(kind, seed):
    rng = random.Random(seed)
    module = random_decoder(rng, seed)
    if rng.random() < 0.3:
        module = module.to(rng.choice([torch.bfloat16, torch.float16]))
    search = random_search(rng, build_runtime(module, "int8"))
    with some_threads(rng.choice([1, 2])):
        found, expected = decode_both_ways(search, *random_batch(rng, seed, search))
    assert found == expected
    if isinstance(search.planner.shape.lookahead, RandomDepths):
        loop, general = search.planner.shape.lookahead.plans
        assert [call[:2] for call in loop.calls] == [call[:2] for call in general.calls]
        assert all(seconds >= 0 for *_, seconds in loop.calls)


@pairs(kind=KINDS, seed=range(20), indirect=["kind"])
def test_texts_draft_as_in_the_general_loop(kind, seed):
    rng = random.Random(seed)
    search = random_search(rng, build_runtime(random_decoder(rng, seed), "int8"))
    batch, asked = random_batch(rng, seed, search)
    texts = with_texts(rng, search, batch)
    asked.clear()
    found, expected = decode_both_ways(search, batch, asked, texts=texts)
    assert found == expected


def test_an_interrupt_while_it_asks_is_not_lost():
    module = tiny_decoder(1, "attending", 4, vocab_size=VOCAB_SIZE)
    rules = build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    runtime = build_runtime(module, "int8")
    rule = AcceptanceRule(exact, best_only=True)
    search = greedy_search(runtime, rule, rules, runtime.proposer(), DraftShape(4))

    def give_up(tokens):
        raise KeyboardInterrupt

    limits = LengthLimits(-50, -40, give_up=give_up)
    with pytest.raises(KeyboardInterrupt):
        search(*random_encoder_out(1, [9, 5]), [torch.tensor([3])] * 2, limits)
