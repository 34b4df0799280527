"""Timestamp rules and patient beam search against openai-whisper's, with and without drafts."""

import functools
import math
import random
from types import SimpleNamespace

import pytest
import torch
from beam_oracle import UncachedScorer
from cases import combinations
from scripted import PathDecoder, PathProposer, drafting, foresight, path_from
from searches import PROMPT, compare, our_greedy
from tiny import (
    EOS,
    bounds,
    plain_greedy,
    random_encoder_out,
    shared_decoder,
    tiny_decoder,
    utterances,
)
from whisper.decoding import ApplyTimestampRules, BeamSearchDecoder, MaximumLikelihoodRanker

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.beam import beam_search
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.patient_beam import patient_beam_search
from espnet_medusa.decoding.search.scores import DECODER, DECODER_ALONE
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions
from espnet_medusa.decoding.search.timestamps import build_timestamp_rules
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.networks.espnet_compat import BatchBeamSearch

FIRST_TIME, TIMED_VOCAB_SIZE = EOS + 3, EOS + 16  # two special tokens, 13 timestamps
LATEST = [None, 0, 4]
ROOT = Prefix(FIRST_TIME + 2)  # prompts may contain any token


def timed_constraints(latest_first: int | None) -> Constraints:
    rules = build_timestamp_rules(FIRST_TIME, TIMED_VOCAB_SIZE, latest_first)
    return Constraints(EOS, timestamps=rules, renormalize=True)


def openai_filter(logits, tokens, prompt_length: int, latest_first: int | None):
    """Set impossible tokens to -inf in logits (R, V) after prefixes (R, L), prompts included."""
    tokenizer = SimpleNamespace(timestamp_begin=FIRST_TIME, eot=EOS, no_timestamps=None)
    logits = logits.clone()
    ApplyTimestampRules(tokenizer, prompt_length, latest_first).apply(logits, tokens)
    return logits


def random_text(rng: random.Random, latest_first: int | None) -> list[int]:
    tokens = []
    for _ in range(rng.randint(0, 9)):
        favour = rng.choice([-3.0, 0.0, 3.0])
        scores = torch.tensor([rng.gauss(0, 1) for _ in range(TIMED_VOCAB_SIZE)])
        scores[FIRST_TIME:] += favour
        scores[EOS] = -1e4
        prompt = torch.tensor([[1, *tokens]])
        tokens.append(int(openai_filter(scores[None], prompt, 1, latest_first)[0].argmax()))
        if tokens[-1] == EOS:
            return tokens[:-1]
    return tokens


@combinations(latest_first=LATEST, seed=range(20))
def test_all_positions_at_once_are_openais_one_by_one(seed, latest_first):
    rng = random.Random(f"{seed} {latest_first}")
    rules = timed_constraints(latest_first).timestamps
    texts = [random_text(rng, latest_first) for _ in range(12)]
    # Drafts may break the rules.
    texts += [[rng.randrange(TIMED_VOCAB_SIZE) for _ in range(rng.randint(0, 6))] for _ in range(6)]
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(len(texts), TIMED_VOCAB_SIZE, generator=generator)
    scores[:, FIRST_TIME:] += torch.randn(len(texts), 1, generator=generator)
    scores[::3, 2] = -math.inf
    prefixes = [path_from(ROOT, text) for text in texts]
    states = rules.states(prefixes, scores.device)
    before = scores.clone()
    filtered = rules.groups(states).apply(scores, EOS)
    assert torch.equal(scores, before)
    on_host = rules.groups_after(prefixes, scores.device)
    assert torch.equal(on_host.limits, rules.groups(states).limits) and on_host.last == FIRST_TIME
    for row, text in enumerate(texts):
        expected = openai_filter(scores[row : row + 1], torch.tensor([[1, *text]]), 1, latest_first)
        assert torch.equal(filtered[row], expected[0])
    # Device steps update states by tokens only.
    tokens = torch.tensor([rng.randrange(TIMED_VOCAB_SIZE) for _ in texts])
    longer = zip(texts, tokens.tolist(), strict=True)
    prefixes = [path_from(ROOT, [*text, token]) for text, token in longer]
    expected = rules.states(prefixes, scores.device)
    advanced = rules.advance(states, tokens)
    for name in ("begins", "last", "paired", "latest"):
        assert torch.equal(getattr(advanced, name), getattr(expected, name))


@combinations(seed=range(10))
def test_rules_for_a_draft_vocabulary(seed):
    rng = random.Random(seed)
    tokens = {*rng.sample(range(TIMED_VOCAB_SIZE), rng.randint(1, 12)), EOS}
    vocabulary = torch.tensor(sorted(tokens))
    constraints = timed_constraints(4).restricted(vocabulary)
    rules = constraints.timestamps
    texts = [random_text(rng, 4) for _ in range(12)]
    scores = torch.randn(12, len(vocabulary), generator=torch.Generator().manual_seed(seed))
    full = torch.full((12, TIMED_VOCAB_SIZE), -math.inf)
    full[:, vocabulary] = scores
    prefixes = [path_from(ROOT, text) for text in texts]
    groups = rules.groups(rules.states(prefixes, scores.device))
    assert torch.equal(groups.limits, rules.groups_after(prefixes, scores.device).limits)
    filtered = groups.apply(scores, constraints.eos)
    for row, text in enumerate(texts):
        expected = openai_filter(full[row : row + 1], torch.tensor([[1, *text]]), 1, 4)
        assert torch.equal(filtered[row], expected[0, vocabulary])


@combinations(heads=["linear", "recurrent", "attending"], seed=range(6))
def test_drafts_leave_greedy_text_with_timestamps(seed, heads):
    rng = random.Random(f"{seed} {heads}")
    decoder = shared_decoder(seed, heads, vocab_size=TIMED_VOCAB_SIZE)
    frames = [rng.randint(1, 12) for _ in range(rng.choice([1, 1, 4]))]
    encoder_out, lengths = random_encoder_out(seed, frames)
    latest_first, most = rng.choice(LATEST), rng.choice([1, 6, 40])
    tree = drafting(decoder, encoder_out, seed)
    shape = DraftShape(rng.randint(0, 4), rng.choice([1, 1, 3]), rng.choice([None, 5]))
    search = our_greedy(tree, shape, constraints=timed_constraints(latest_first))
    prompt = torch.tensor([PROMPT] * len(lengths))
    states = search(encoder_out, lengths, prompt, bounds([most] * len(lengths)))
    rules = functools.partial(openai_filter, prompt_length=len(PROMPT), latest_first=latest_first)
    for alone, state in zip(utterances(encoder_out, lengths), states, strict=True):
        given = decoder, alone, PROMPT, most
        tokens, score, _ = plain_greedy(*given, rules=rules, guess=state.tokens)
        assert state.tokens == tokens
        assert state.hypothesis.score == pytest.approx(score, abs=1e-4)


@combinations(seed=range(5))
def test_drafts_follow_the_rules(seed):
    decoder = shared_decoder(seed, vocab_size=TIMED_VOCAB_SIZE)
    encoder_out, lengths = random_encoder_out(seed, [8])
    tree = PathDecoder(build_runtime(decoder), PathProposer(foresight(decoder, encoder_out)))
    search = our_greedy(tree, DraftShape(5), constraints=timed_constraints(3))
    (state,) = search(encoder_out, lengths, torch.tensor([PROMPT]), bounds([30]))
    assert state.steps > 3
    # The first call has no drafts, because the proposer needs the decoder's head input.
    assert state.statistics.decoder_calls == 1 + math.ceil((state.steps - 1) / 6)


class FilteredScorer(UncachedScorer):
    def __init__(self, decoder, latest_first):
        super().__init__(decoder, prompt_length=len(PROMPT))
        self.latest_first = latest_first

    def log_probs(self, logits, ys):
        return openai_filter(logits, ys, len(PROMPT), self.latest_first).log_softmax(-1)


@combinations(seed=range(12))
def test_drafts_leave_beams_with_timestamps(seed):
    rng = random.Random(seed)
    decoder = shared_decoder(seed, rng.choice(["linear", "recurrent"]), vocab_size=TIMED_VOCAB_SIZE)
    encoder_out, lengths = random_encoder_out(
        seed, [rng.randint(3, 12) for _ in range(rng.choice([1, 3]))]
    )
    latest_first, beam_size = rng.choice(LATEST), rng.choice([1, 2, 4])
    tree = drafting(decoder, encoder_out, seed)
    shape = DraftShape(rng.randint(0, 4), rng.choice([beam_size, 2 * beam_size]))
    constraints = timed_constraints(latest_first)
    search = beam_search(tree, DECODER_ALONE, beam_size, constraints, tree.proposer(), shape)
    oracle = BatchBeamSearch(
        {DECODER: FilteredScorer(decoder, latest_first)}, {DECODER: 1.0}, beam_size,
        TIMED_VOCAB_SIZE, EOS, EOS, pre_beam_score_key="full", hyp_primer=PROMPT,
    )  # fmt: skip
    compare(search, encoder_out, lengths, oracle, LengthLimits(-rng.choice([4, 12])), PROMPT)


def openai_beam(decoder, encoder_out, beam_size, most, options, latest_first):
    """``DecodingTask``'s loop: tokens and score of its result."""
    inference = SimpleNamespace(rearrange_kv_cache=lambda rows: None)
    beam = BeamSearchDecoder(beam_size, EOS, inference, options.patience)
    tokens, sums = torch.tensor([PROMPT] * beam_size), torch.zeros(beam_size)
    logits_after = foresight(decoder, encoder_out)
    for _ in range(most):
        rows = [logits_after(tuple(row)) for row in tokens.tolist()]
        logits = openai_filter(torch.stack(rows), tokens, len(PROMPT), latest_first)
        tokens, completed = beam.update(tokens, logits, sums)
        if completed:
            break
    [ended], scores = beam.finalize(tokens[None], sums[None])
    texts = [row[len(PROMPT) : (row == EOS).nonzero()[0, 0]] for row in ended]
    (best,) = MaximumLikelihoodRanker(options.length_penalty).rank([texts], scores)
    return texts[best].tolist(), scores[0][best]


@combinations(seed=range(24))
def test_the_best_hypothesis_equals_openai_whispers(seed):
    rng = random.Random(seed)
    decoder = tiny_decoder(seed, rng.choice(["linear", "recurrent"]), vocab_size=TIMED_VOCAB_SIZE)
    if rng.random() < 0.5:  # ends soon
        decoder.projection.data[EOS] *= 3
    encoder_out, lengths = random_encoder_out(
        seed, [rng.randint(3, 12) for _ in range(rng.choice([1, 3]))]
    )
    beam_size, latest_first = rng.choice([1, 2, 5]), rng.choice([None, 4])
    patience, penalty = rng.choice([None, 0.5, 1.0, 2.0]), rng.choice([None, 0.0, 0.6])
    options = SearchOptions(patience=patience, length_penalty=penalty)
    if options.patience == 0.5 and beam_size == 1:
        options = SearchOptions()
    most, tree = rng.choice([1, 5, 16]), drafting(decoder, encoder_out, seed)
    shape = DraftShape(rng.choice([0, 2, 4]), rng.choice([beam_size, beam_size + 3]))
    parts = timed_constraints(latest_first), tree.proposer(), shape, options
    search = patient_beam_search(tree, beam_size, *parts)
    prompt = torch.tensor([PROMPT] * len(lengths))
    states = search(encoder_out, lengths, prompt, bounds([most] * len(lengths)))
    for alone, state in zip(utterances(encoder_out, lengths), states, strict=True):
        tokens, score = openai_beam(decoder, alone, beam_size, most, options, latest_first)
        assert state.n_best[0].tokens == [*tokens, EOS]
        assert state.n_best[0].score == pytest.approx(score, abs=1e-4)
        assert state.statistics.decoder_calls <= most
