"""Prompts of several lengths in one batch, probabilities within prompts, and sampling."""

import random

import pytest
import torch
from beam_oracle import make_weights
from cases import combinations
from scripted import foresight
from searches import assert_same_alone, constraints_of, our_greedy, our_search
from tiny import (
    EOS,
    VOCAB_SIZE,
    bounds,
    plain_greedy,
    random_encoder_out,
    shared_decoder,
    utterances,
)

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.greedy import sampling_search
from espnet_medusa.decoding.search.state import ProbedToken


def random_case(seed, count, heads="linear"):
    """Return a random generator, a decoder, memory and lengths, and prompts of several lengths."""
    rng = random.Random(f"{seed} {heads}")
    encoder_out, lengths = random_encoder_out(seed, [rng.randint(1, 12) for _ in range(count)])
    sizes = [rng.choice([1, 2, 9, 20]) for _ in range(count)]
    prompts = [torch.tensor([rng.randrange(VOCAB_SIZE) for _ in range(size)]) for size in sizes]
    return rng, shared_decoder(seed, heads), encoder_out, lengths, prompts


@combinations(heads=["linear", "recurrent", "attending"], seed=range(5))
def test_a_batch_of_several_prompts_is_each_alone(seed, heads):
    rng, decoder, encoder_out, lengths, prompts = random_case(seed, 4, heads)
    search = our_greedy(decoder, DraftShape(rng.choice([0, 3])))
    probed = [ProbedToken(rng.randrange(len(p)), rng.randrange(VOCAB_SIZE)) for p in prompts]
    states = search(encoder_out, lengths, prompts, bounds([20] * 4), probed=probed)
    rows = zip(states, prompts, utterances(encoder_out, lengths), probed, strict=True)
    for state, prompt, alone, watch in rows:
        given = decoder, alone, prompt.tolist(), 20
        tokens, score, ended = plain_greedy(*given, guess=state.tokens)
        assert (state.tokens, state.ended) == (tokens, ended)
        assert state.hypothesis.score == pytest.approx(score, abs=1e-4)
        logits = foresight(decoder, alone)(tuple(prompt.tolist()[: watch.index + 1]))
        assert watch.probability == pytest.approx(float(logits.softmax(-1)[watch.token]), abs=1e-5)


@combinations(seed=range(4))
def test_a_beam_of_several_prompts_is_each_alone(seed):
    _, decoder, encoder_out, lengths, prompts = random_case(seed, 3, "recurrent")
    search = our_search(decoder, seed, make_weights(), 3, DraftShape(2, 3))

    def search_rows(rows, encoder_out, lengths):
        return search(
            encoder_out, lengths, [prompts[row] for row in rows], bounds([12] * len(rows))
        )

    assert_same_alone(search_rows, encoder_out, lengths)


@combinations(seed=range(4))
def test_samples_and_scores_do_not_depend_on_the_batch(seed):
    rng, decoder, encoder_out, lengths, prompts = random_case(seed, 3)
    banned = rng.randrange(EOS)
    constraints = constraints_of(suppress_tokens=[banned])
    search = sampling_search(build_runtime(decoder), constraints, 1.3, seed)
    for row, state in enumerate(search(encoder_out, lengths, prompts, bounds([9] * 3))):
        alone = utterances(encoder_out, lengths)[row], lengths[[row]], [prompts[row]]
        (expected,) = search(*alone, bounds([9]))
        assert state.tokens == expected.tokens and banned not in state.tokens
        tokens = [*state.tokens, *[EOS] * state.ended]
        prompt = prompts[row].tolist()
        logits_after = foresight(decoder, alone[0], [[*prompt, *state.tokens]])
        prefixes = [(*prompt, *tokens[:place]) for place in range(len(tokens))]
        logits = torch.stack([logits_after(prefix) for prefix in prefixes])
        logits[:, banned] = -torch.inf
        score = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).sum()
        assert state.hypothesis.score == pytest.approx(float(score), abs=1e-4)


@combinations(temperature=[0.5, 2.0])
def test_samples_follow_their_probabilities(temperature):
    decoder = shared_decoder(3)
    encoder_out, lengths = random_encoder_out(3, [8])
    runtime, draws = build_runtime(decoder), 600
    counts = torch.zeros(VOCAB_SIZE)
    for seed in range(draws):
        search = sampling_search(runtime, constraints_of(), temperature, seed)
        (state,) = search(encoder_out, lengths, torch.tensor([[3, 1]]), bounds([1]))
        counts[state.hypothesis.prefix.token] += 1
    expected = draws * (foresight(decoder, encoder_out)((3, 1)) / temperature).softmax(-1)
    # Pearson's statistic with rare classes merged: 99.9 % of fair samples are below the bound.
    rare = expected < 5
    counts, expected = (
        torch.cat([values[~rare], values[rare].sum()[None]]) for values in (counts, expected)
    )
    statistic = ((counts - expected) ** 2 / expected.clamp(min=1.0)).sum()
    assert statistic < 29.6  # of 10 degrees of freedom
