"""Loops: how they are detected, and searches with a rule, which stop there with any drafts."""

import random

import pytest
import torch
from searches import PROMPT, constraints_of, drafted_by, our_greedy
from tiny import plain_greedy, random_encoder_out, utterances

from espnet_medusa.decoding.search import state as search_state
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.patient_beam import patient_beam_search
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.inference.longform.repetition import LOOP_REPEATS, LOOP_TOKENS, ends_in_loop

MOST = 16


def hopeless(tokens: list[int]) -> bool:
    """A rule that ends some searches."""
    return sum(tokens) % 3 == 0


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Searches call the rule at every second step."""
    monkeypatch.setattr(search_state, "GIVE_UP_STEPS", 2)


@pytest.mark.parametrize("seed", range(20))
def test_greedy_search_stops_at_the_same_token_with_any_drafts(seed):
    rng = random.Random(seed)
    decoder, runtime = drafted_by(seed, rng.choice(["linear", "recurrent"]))
    encoder_out, lengths = random_encoder_out(seed, [5, 9, 12])
    search = our_greedy(runtime, DraftShape(rng.choice([0, 2, 4]), rng.choice([1, 3])))
    prompts = torch.tensor([PROMPT] * 3)
    states = search(encoder_out, lengths, prompts, LengthLimits(-MOST, give_up=hopeless))
    for alone, state in zip(utterances(encoder_out, lengths), states, strict=True):
        tokens, _, ended = plain_greedy(decoder, alone, PROMPT, MOST)
        stops = [count for count in range(2, len(tokens) + 1, 2) if hopeless(tokens[:count])]
        if stops:
            tokens, ended = tokens[: stops[0]], False
        assert (state.tokens, state.ended) == (tokens, ended)


def test_a_beam_stops_at_its_best_hypothesis_with_any_drafts():
    stopped = 0
    for seed in range(20):
        rng = random.Random(seed)
        _, runtime = drafted_by(seed, "recurrent")
        encoder_out, lengths = random_encoder_out(seed, [5, 9, 12])
        prompts, beam_size = torch.tensor([PROMPT] * 3), rng.choice([2, 3])
        results = []
        for depth in (0, rng.choice([2, 4])):
            rejected = []

            def rule(tokens, rejected=rejected):
                rejected += [tokens] * hopeless(tokens)
                return hopeless(tokens)

            search = patient_beam_search(
                runtime, beam_size, constraints_of(), runtime.proposer(),
                DraftShape(depth, beam_size),
            )  # fmt: skip
            states = search(encoder_out, lengths, prompts, LengthLimits(-MOST, give_up=rule))
            results.append([[ended.tokens for ended in state.n_best] for state in states])
            stopped += sum(state.n_best[0].tokens[:-1] in rejected for state in states)
        assert results[0] == results[1]
    assert stopped > 20


def loop_length(tokens: list[int]) -> int:
    """Length of the longest tail that repeats a phrase ``LOOP_REPEATS`` times, by comparison."""
    longest = 0
    for period in range(1, len(tokens) // LOOP_REPEATS + 1):
        for count in range(LOOP_REPEATS * period, len(tokens) + 1):
            tail = tokens[-count:]
            if all(a == b for a, b in zip(tail, tail[period:], strict=False)):
                longest = max(longest, count)
    return longest


@pytest.mark.parametrize("seed", range(40))
def test_loops_are_found_as_by_comparing_all_tails(seed):
    rng = random.Random(seed)
    phrase = [rng.randrange(3) for _ in range(rng.choice([1, 2, 3, 7, 15, 30]))]
    tokens = [rng.randrange(9) for _ in range(rng.randrange(40))]
    tokens += (phrase * 100)[: rng.randrange(150)]
    if rng.random() < 0.3:
        tokens.append(9)
    assert ends_in_loop(tokens) == (loop_length(tokens) >= LOOP_TOKENS)


def test_spoken_repetitions_are_no_loops():
    no = [645, 11]  # "no,"
    assert not ends_in_loop([10, *no * 20])
    assert not ends_in_loop([*no * 40, 300, 301, 302])
    assert ends_in_loop([10, *no * 24])
    assert not ends_in_loop([])
