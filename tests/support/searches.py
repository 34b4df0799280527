"""Our searches over tiny decoders, and what they are compared with."""

import pytest
import torch
from beam_oracle import assert_same_nbest, make_scorers
from tiny import EOS, VOCAB_SIZE, bounds, plain_greedy

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
    """Greedy search with what drafts in the decoder, a trained module or a ``TreeDecoder``."""
    decoder = build_runtime(decoder) if isinstance(decoder, torch.nn.Module) else decoder
    limits = build_constraints(SearchOptions(**constraints), VOCAB_SIZE, EOS)
    shape = shape or DraftShape(depth=decoder.num_heads)
    search = greedy_search(decoder, rule, limits, decoder.proposer(), shape)
    prompt = torch.tensor([PROMPT] * len(lengths))
    return search(memory, lengths, prompt, bounds(max_lengths, min_lengths))


def assert_plain(decoder, memory, lengths, found, max_lengths, min_lengths=None):
    for row, hypothesis in enumerate(found):
        alone = memory[row : row + 1, : lengths[row]]
        least = min_lengths[row] if min_lengths else 0
        tokens, score, ended = plain_greedy(
            decoder, alone, PROMPT, max_lengths[row], min_length=least
        )
        assert hypothesis.tokens == tokens
        assert hypothesis.ended == ended
        assert hypothesis.hypothesis.score == pytest.approx(score, abs=1e-4)


IMPOSSIBLE = -1e8


def our_search(decoder, seed, weights, beam_size, shape, constraints=None, **options):
    """Beam search with what drafts in the decoder, a trained module or a ``TreeDecoder``."""
    decoder = build_runtime(decoder) if isinstance(decoder, torch.nn.Module) else decoder
    scorers, ctc = make_scorers(seed)
    constraints = constraints or build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    return beam_search(
        decoder, Scorers(weights, scorers, ctc.log_softmax), beam_size, constraints,
        decoder.proposer(), shape, **options,
    )  # fmt: skip


def compare(search, memory, lengths, oracle, limits, prompt=(EOS,)):
    """Search a batch; each utterance has to have the oracle's best, as many as are asked for."""
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
        # What has no probability fills beams that lack candidates; among it order means nothing.
        assert_same_nbest(
            [(tokens, score) for tokens, score in found if score > IMPOSSIBLE],
            [(tokens, score) for tokens, score in expected if score > IMPOSSIBLE],
        )
    return states
