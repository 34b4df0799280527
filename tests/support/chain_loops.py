"""Random greedy searches, by a decoder's chain loop and by the general loop."""

import random
from dataclasses import asdict, replace

import pytest
import torch
from tiny import EOS, HIDDEN_SIZE, random_encoder_out, tiny_decoder

from espnet_medusa.decoding.search.acceptance import AcceptanceRule, exact
from espnet_medusa.decoding.search.chain_decoding import chain_decoding
from espnet_medusa.decoding.search.constraints import build_constraints
from espnet_medusa.decoding.search.drafters import text_drafter
from espnet_medusa.decoding.search.drafting.auto_depth import AutoDepth
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.drafting.step_planner import StepPlanner
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions
from espnet_medusa.decoding.search.state import ProbedToken
from espnet_medusa.decoding.search.timestamps import build_timestamp_rules
from espnet_medusa.decoding.tree.depth_plan import DepthPlan

VOCAB_SIZE, FIRST_TIME = 22, EOS + 2
SIZES = {"vocab_size": VOCAB_SIZE, "max_target_positions": 160}
CHAIN_DECODING = "espnet_medusa.decoding.search.search.chain_decoding"


@torch.no_grad()
def random_decoder(rng: random.Random, seed: int):
    """Return a decoder with attending heads that prefer the same tokens, so that drafts are right.

    The end symbol is often among these tokens.
    """
    module = tiny_decoder(seed, "attending", rng.choice([1, 4, 10]), **SIZES)
    preferred = rng.choice([0.3, 0.6, 1.0]) * torch.randn(HIDDEN_SIZE)
    preferred += rng.choice([0.0, 0.5, 1.0]) * module.whisper.embed_tokens.weight[EOS]
    for norm in (module.whisper.layer_norm, module.heads.norm):
        norm.bias.copy_(preferred)
    return module


class RandomDepths(AutoDepth):
    """Random plans, the same ones for all searches of so many utterances."""

    def __init__(self, rng: random.Random, most: int):
        super().__init__(0, range(most + 1))
        self.random_depths = [rng.randint(0, most) for _ in range(12)]
        self.trial = rng.randint(0, most), rng.randint(0, 4)
        self.plans: list[DepthPlan] = []

    def plan(self, utterances: int) -> DepthPlan:
        self.plans.append(DepthPlan(self.random_depths[:utterances], *self.trial))
        return self.plans[-1]


def random_search(rng: random.Random, runtime, device="cpu", precision=None):
    """Return a greedy search with random rules, with and without drafts."""
    num_heads = runtime.num_heads
    options = {}
    if rng.random() < 0.5:
        options["suppress_tokens"] = rng.sample(range(EOS), 2)
    if rng.random() < 0.5:
        options["begin_suppress_tokens"] = [*rng.sample(range(EOS), 2), EOS]
    rules = build_constraints(SearchOptions(**options), VOCAB_SIZE, EOS, device)
    if rules.blocked is not None and rng.random() < 0.5:  # others after each of the first tokens
        first, later = rules.blocked.split(1)
        others = torch.tensor([[rng.random() < 0.1 for _ in range(VOCAB_SIZE)] for _ in range(20)])
        rules = replace(rules, blocked=torch.cat([first, others.to(device), later]))
    if rng.random() < 0.3:
        latest = rng.choice([None, 0, 3])
        times = build_timestamp_rules(FIRST_TIME, VOCAB_SIZE, latest)
        rules = replace(rules, timestamps=times, renormalize=True)
    elif rng.random() < 0.3:
        rules = replace(rules, renormalize=True)
    vocabulary = None
    if rng.random() < 0.3:
        vocabulary = torch.tensor(sorted({*rng.sample(range(VOCAB_SIZE), 8), EOS}), device=device)
    proposer = runtime.proposer(vocabulary, precision)
    depth, least = rng.choice([0, 1, *[num_heads] * 4]), rng.choice([0, 0, 0.01, 0.3])
    lookahead = RandomDepths(rng, depth) if depth and rng.random() < 0.5 else None
    shape = DraftShape(depth, min_probability=least, lookahead=lookahead)
    rule = AcceptanceRule(exact, best_only=True)
    return greedy_search(runtime, rule, rules, proposer, shape)


def random_batch(
    rng: random.Random, seed: int, search, most=(1, 2, 7, 30, 55, 140), device="cpu", count=None
):
    """Return the arguments of a search, and the texts that it asked of.

    ``count``: number of utterances; None: 1 to 5.
    """
    count = count or rng.randint(1, 5)
    encoded = random_encoder_out(seed, [rng.randint(1, 20) for _ in range(count)])
    prompts = [torch.tensor([3, 1, 5][: rng.randint(1, 3)]) for _ in range(count)]
    asked, may_be_limited = [], not search.strategy.scoring.constraints.renormalize

    def give_up(tokens):
        asked.append(tuple(tokens))
        return sum(tokens) % 3 == 0

    limits = [
        LengthLimits(
            -rng.choice(most),
            -rng.choice([0, 0, 1, 5, 30]) if may_be_limited else 0,
            give_up=rng.choice([None, give_up]),
        )
        for _ in range(count)
    ]
    return (*(part.to(device) for part in encoded), prompts, limits), asked


def with_texts(rng: random.Random, search, batch):
    """Let texts draft in a search; return texts near those of a batch, of other ones, or none."""
    depth, planner = rng.choice([1, 3, 12, 40]), search.planner
    proposer = planner.proposer if planner.shape.depth and rng.random() < 0.7 else None
    times = range(FIRST_TIME, VOCAB_SIZE) if rng.random() < 0.6 else range(0)
    drafter = text_drafter(proposer, planner.shape.depth, VOCAB_SIZE, EOS, times)
    shape = replace(planner.shape, depth=max(depth, planner.shape.depth), lookahead=None)
    search.text_planner = StepPlanner(search.strategy, drafter, shape)
    texts = [[*state.tokens] for state in search(*batch)]
    for text in texts:
        if EOS in text:
            text.remove(EOS)
        for _ in range(rng.choice([0, 0, 1, 2, 5])):
            place = rng.randrange(len(text) + 1)
            others = rng.choices(range(VOCAB_SIZE), k=rng.randint(0, 2))
            text[place : place + rng.randint(0, 2)] = others
    return [rng.choice([text, text, text, [], None]) for text in texts]


def results(states, probed):
    found = []
    for state, token in zip(states, probed, strict=True):
        counts = asdict(state.statistics)
        counts = {name: value for name, value in counts.items() if "seconds" not in name}
        (best,) = state.n_best
        found.append(([best.tokens, state.ended, counts], best.score, token.probability))
    return found


def decode_both_ways(search, batch, asked, together=None, texts=None):
    """Return the results of the chain loop and of the general loop, and the texts asked of."""
    found = []
    for fast in (True, False):
        used = []

        def choose(*given, fast=fast, used=used):
            chosen = chain_decoding(*given) if fast else None
            used.append(chosen is not None)
            return chosen

        prompts = batch[2]
        probed = [ProbedToken(len(prompt) - 1, 4) for prompt in prompts]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CHAIN_DECODING, choose)
            others = {"draft_texts": texts, "together": together}
            states = search(*batch, probed=probed, **others)
        assert {*used} == {fast}
        found.append((results(states, probed), {*asked}))
        asked.clear()
    return found
