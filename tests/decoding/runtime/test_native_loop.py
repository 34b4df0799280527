"""Greedy search in one call of the kernels equals the general loop, bit for bit."""

import random
from dataclasses import asdict, replace

import pytest
import torch
from cases import pairs
from kernel_kinds import KINDS, some_threads, with_kernels
from tiny import EOS, random_encoder_out, tiny_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search import chain_decoding
from espnet_medusa.decoding.search.acceptance import AcceptanceRule, exact
from espnet_medusa.decoding.search.constraints import build_constraints
from espnet_medusa.decoding.search.drafting.auto_depth import AutoDepth
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions
from espnet_medusa.decoding.search.state import ProbedToken
from espnet_medusa.decoding.search.timestamps import build_timestamp_rules
from espnet_medusa.decoding.tree.depth_plan import DepthPlan

VOCAB_SIZE, FIRST_TIME = 22, EOS + 2

pytestmark = with_kernels


def random_search(rng: random.Random, seed: int):
    """Return a greedy search in 8 bits; with random rules, with and without drafts."""
    num_heads = rng.choice([1, 4, 10])
    module = tiny_decoder(seed, "attending", num_heads, vocab_size=VOCAB_SIZE)
    if rng.random() < 0.3:
        module = module.to(rng.choice([torch.bfloat16, torch.float16]))
    runtime = build_runtime(module, "int8")
    options = {}
    if rng.random() < 0.5:
        options["suppress_tokens"] = rng.sample(range(EOS), 2)
    if rng.random() < 0.5:
        options["begin_suppress_tokens"] = [*rng.sample(range(EOS), 2), EOS]
    rules = build_constraints(SearchOptions(**options), VOCAB_SIZE, EOS)
    if rng.random() < 0.5:
        latest = rng.choice([None, 0, 3])
        times = build_timestamp_rules(FIRST_TIME, VOCAB_SIZE, latest)
        rules = replace(rules, timestamps=times, renormalize=True)
    elif rng.random() < 0.3:
        rules = replace(rules, renormalize=True)
    vocabulary = None
    if rng.random() < 0.3:
        vocabulary = torch.tensor(sorted({*rng.sample(range(VOCAB_SIZE), 8), EOS}))
    proposer = runtime.proposer(vocabulary)
    depth = rng.choice([0, 1, num_heads])
    lookahead = AutoDepth(0, depth) if depth and rng.random() < 0.5 else None
    least = rng.choice([0, 0, 0.01, 0.3])
    shape = DraftShape(depth, min_probability=least, lookahead=lookahead)
    rule = AcceptanceRule(exact, best_only=True)
    return greedy_search(runtime, rule, rules, proposer, shape), not rules.renormalize


def results(states, probed):
    found = []
    for state, token in zip(states, probed, strict=True):
        counts = asdict(state.statistics)
        counts = {name: value for name, value in counts.items() if "seconds" not in name}
        (best,) = state.n_best
        found.append([best.tokens, best.score, state.ended, counts, token.probability])
    return found


@pairs(kind=KINDS, seed=range(20), indirect=["kind"])
def test_the_same_as_the_general_loop(kind, seed, monkeypatch):
    rng = random.Random(seed)
    search, may_be_limited = random_search(rng, seed)
    count = rng.randint(1, 5)
    encoded = random_encoder_out(seed, [rng.randint(1, 20) for _ in range(count)])
    prompts = [torch.tensor([3, 1, 5][: rng.randint(1, 3)]) for _ in range(count)]
    asked = []

    def give_up(tokens):
        asked.append(tokens)
        return sum(tokens) % 3 == 0

    limits = [
        LengthLimits(
            -rng.choice([1, 2, 7, 30, 55]),
            -rng.choice([0, 0, 1, 5]) if may_be_limited else 0,
            give_up=rng.choice([None, give_up]),
        )
        for _ in range(count)
    ]
    depths = [rng.randint(0, search.planner.shape.depth) for _ in range(count)]
    trial, plans = (rng.randint(0, search.planner.shape.depth), rng.randint(0, 4)), []

    def plan(self, utterances):
        plans.append(DepthPlan(depths, *trial))
        return plans[-1]

    monkeypatch.setattr(AutoDepth, "plan", plan)
    found, used = [], []
    loop = chain_decoding.decode_chains
    for fast in (True, False):

        def decode_chains(*given, fast=fast):
            used.append(fast and loop(*given))
            return used[-1]

        monkeypatch.setattr("espnet_medusa.decoding.search.search.decode_chains", decode_chains)
        probed = [ProbedToken(len(prompt) - 1, 4) for prompt in prompts]
        with some_threads(rng.choice([1, 2])):
            states = search(*encoded, prompts, limits, probed=probed)
        found.append([results(states, probed), [*map(tuple, asked)]])
        asked.clear()
    assert used == [True, False]
    assert found[0][0] == found[1][0]
    assert {*found[0][1]} == {*found[1][1]}
    if plans:
        calls = [[call[:2] for call in plan.calls] for plan in plans]
        assert calls[0] == calls[1]
        assert all(seconds >= 0 for plan in plans for *_, seconds in plan.calls)


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
