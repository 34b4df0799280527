"""Searches over tiny decoders, and comparisons with oracles."""

import pytest
import torch
from beam_oracle import assert_same_nbest, make_scorers
from tiny import EOS, VOCAB_SIZE, bounds, plain_greedy, utterances

from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.acceptance import AcceptanceRule, exact
from espnet_medusa.search.ahead.lookahead import DraftShape
from espnet_medusa.search.beam import beam_search
from espnet_medusa.search.constraints import build_constraints
from espnet_medusa.search.greedy import greedy_search
from espnet_medusa.search.options import SearchOptions
from espnet_medusa.search.scores import Scorers

PROMPT = [3, 1]


EXACT = AcceptanceRule(exact)


def decode(
    decoder, memory, lengths, max_lengths, rule=EXACT, min_lengths=None, shape=None, **constraints
):
    """Search greedily with the proposer of a decoder module or ``TreeDecoder``."""
    decoder = build_runtime(decoder) if isinstance(decoder, torch.nn.Module) else decoder
    limits = build_constraints(SearchOptions(**constraints), VOCAB_SIZE, EOS)
    shape = shape or DraftShape(depth=decoder.num_heads)
    search = greedy_search(decoder, rule, limits, decoder.proposer(), shape)
    prompt = torch.tensor([PROMPT] * len(lengths))
    return search(memory, lengths, prompt, bounds(max_lengths, min_lengths))


def assert_plain(decoder, memory, lengths, states, max_lengths, min_lengths=None):
    for row, alone in enumerate(utterances(memory, lengths)):
        least = min_lengths[row] if min_lengths else 0
        tokens, score, ended = plain_greedy(
            decoder, alone, PROMPT, max_lengths[row], min_length=least
        )
        assert (states[row].tokens, states[row].ended) == (tokens, ended)
        assert states[row].hypothesis.score == pytest.approx(score, abs=1e-4)


IMPOSSIBLE = -1e8


def our_search(decoder, seed, weights, beam_size, shape, constraints=None, **options):
    """Build beam search with the proposer of a decoder module or ``TreeDecoder``."""
    decoder = build_runtime(decoder) if isinstance(decoder, torch.nn.Module) else decoder
    scorers, ctc = make_scorers(seed)
    constraints = constraints or build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    return beam_search(
        decoder, Scorers(weights, scorers, ctc.log_softmax), beam_size, constraints,
        decoder.proposer(), shape, **options,
    )  # fmt: skip


def compare(search, memory, lengths, oracle, limits, prompt=(EOS,)):
    """Search a batch; compare each n-best list with the oracle's."""
    states = search(memory, lengths, torch.tensor([[*prompt]] * len(lengths)), limits)
    for row, state in enumerate(states):
        with torch.no_grad():
            expected = oracle(
                memory[row, : lengths[row]],
                maxlenratio=limits.maxlenratio,
                minlenratio=limits.minlenratio,
            )
        expected = [(hyp.yseq.tolist(), float(hyp.score)) for hyp in expected]
        expected = expected[: search.strategy.ranking.nbest]
        found = [([*prompt, *ended.tokens], ended.score) for ended in state.ended]
        # Impossible hypotheses fill beams that lack candidates; their order is arbitrary.
        assert_same_nbest(
            [(tokens, score) for tokens, score in found if score > IMPOSSIBLE],
            [(tokens, score) for tokens, score in expected if score > IMPOSSIBLE],
        )
    return states
