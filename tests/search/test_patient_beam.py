"""Patient beam search against openai-whisper's beam, with and without drafts."""

import random
from types import SimpleNamespace

import pytest
import torch
from openai_rules import TIMED_VOCAB_SIZE, openai_filter, timed_constraints
from scripted import drafting
from searches import PROMPT
from tiny import EOS, bounds, random_memory, tiny_decoder, utterances
from whisper.decoding import BeamSearchDecoder, MaximumLikelihoodRanker

from espnet_medusa.search.ahead.lookahead import DraftShape
from espnet_medusa.search.options import SearchOptions
from espnet_medusa.search.patient_beam import patient_beam_search


def openai_beam(decoder, memory, beam_size, most, options, latest_first):
    """``DecodingTask``'s loop: tokens and score of its result."""
    inference = SimpleNamespace(rearrange_kv_cache=lambda rows: None)
    beam = BeamSearchDecoder(beam_size, EOS, inference, options.patience)
    tokens = torch.tensor([PROMPT] * beam_size)
    memory, sums = memory.expand(beam_size, -1, -1), torch.zeros(beam_size)
    lengths = torch.full((beam_size,), memory.size(1))
    for _ in range(most):
        sizes = torch.full((beam_size,), tokens.size(1))
        with torch.no_grad():
            logits = decoder(memory, lengths, tokens, sizes)[0][:, -1]
        logits = openai_filter(logits, tokens, len(PROMPT), latest_first)
        tokens, completed = beam.update(tokens, logits, sums)
        if completed:
            break
    [ended], scores = beam.finalize(tokens[None], sums[None])
    texts = [row[len(PROMPT) : (row == EOS).nonzero()[0, 0]] for row in ended]
    (best,) = MaximumLikelihoodRanker(options.length_penalty).rank([texts], scores)
    return texts[best].tolist(), scores[0][best]


@pytest.mark.parametrize("seed", range(24))
def test_the_best_hypothesis_equals_openai_whispers(seed):
    rng = random.Random(seed)
    decoder = tiny_decoder(seed, rng.choice(["linear", "recurrent"]), vocab_size=TIMED_VOCAB_SIZE)
    if rng.random() < 0.5:  # ends soon
        decoder.projection.data[EOS] *= 3
    memory, lengths = random_memory(seed, [rng.randint(3, 12) for _ in range(rng.choice([1, 3]))])
    beam_size, latest_first = rng.choice([1, 2, 5]), rng.choice([None, 4])
    options = SearchOptions(
        patience=rng.choice([None, 0.5, 1.0, 2.0]), length_penalty=rng.choice([None, 0.0, 0.6])
    )
    if options.patience == 0.5 and beam_size == 1:
        options = SearchOptions()
    most, tree = rng.choice([1, 5, 16]), drafting(decoder, memory, seed)
    shape = DraftShape(rng.choice([0, 2, 4]), rng.choice([beam_size, beam_size + 3]))
    parts = timed_constraints(latest_first), tree.proposer(), shape, options
    search = patient_beam_search(tree, beam_size, *parts)
    prompt = torch.tensor([PROMPT] * len(lengths))
    with torch.no_grad():
        states = search(memory, lengths, prompt, bounds([most] * len(lengths)))
    for alone, state in zip(utterances(memory, lengths), states, strict=True):
        tokens, score = openai_beam(decoder, alone, beam_size, most, options, latest_first)
        assert state.n_best[0].tokens == [*tokens, EOS]
        assert state.n_best[0].score == pytest.approx(score, abs=1e-4)
        assert state.statistics.decoder_calls <= most
