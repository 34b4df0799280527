"""Our searches with tiny decoders, and comparisons with their oracles."""

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
    decoder, memory, lengths, max_lengths, rule=EXACT, min_lengths=None, shape=None,
    proposer=None, inputs=None, prompt=PROMPT, **constraints,
):  # fmt: skip
    """Decode greedily with a trained module or a ``TreeDecoder``.

    Args:
        proposer: None: the decoder's.
        inputs: U ``DraftInput``; None: those of the decoder.
        constraints: Fields of ``SearchOptions``.
    """
    decoder = build_runtime(decoder) if isinstance(decoder, torch.nn.Module) else decoder
    limits = build_constraints(SearchOptions(**constraints), VOCAB_SIZE, EOS)
    shape = shape or DraftShape(depth=decoder.num_heads)
    search = greedy_search(decoder, rule, limits, proposer or decoder.proposer(), shape)
    prompts = torch.tensor([prompt] * len(lengths))
    return search(memory, lengths, prompts, bounds(max_lengths, min_lengths), inputs)


def assert_plain(decoder, memory, lengths, states, max_lengths, min_lengths=None, prompt=PROMPT):
    """Compare search states with teacher-forced greedy search of each utterance alone."""
    for row, alone in enumerate(utterances(memory, lengths)):
        least = min_lengths[row] if min_lengths else 0
        tokens, score, ended = plain_greedy(
            decoder, alone, prompt, max_lengths[row], min_length=least
        )
        assert (states[row].tokens, states[row].ended) == (tokens, ended)
        assert states[row].hypothesis.score == pytest.approx(score, abs=1e-4)


IMPOSSIBLE = -1e8


def our_search(
    decoder, seed, weights, beam_size, shape, constraints=None, proposer=None, **options
):
    """Build beam search for a trained module or a ``TreeDecoder``; arguments as ``decode``'s."""
    decoder = build_runtime(decoder) if isinstance(decoder, torch.nn.Module) else decoder
    scorers, ctc = make_scorers(seed)
    constraints = constraints or build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    return beam_search(
        decoder, Scorers(weights, scorers, ctc.log_softmax), beam_size, constraints,
        proposer or decoder.proposer(), shape, **options,
    )  # fmt: skip


def compare(search, memory, lengths, oracle, limits, prompt=(EOS,), inputs=None):
    """Check that a batch has the oracle's best hypotheses; return its search states."""
    states = search(memory, lengths, torch.tensor([[*prompt]] * len(lengths)), limits, inputs)
    for row, state in enumerate(states):
        with torch.no_grad():
            expected = oracle(
                memory[row, : lengths[row]],
                maxlenratio=limits.maxlenratio,
                minlenratio=limits.minlenratio,
            )
        expected = [(hyp.yseq.tolist(), float(hyp.score)) for hyp in expected]
        expected = expected[: search.strategy.ranking.nbest]
        result = [([*prompt, *ended.tokens], ended.score) for ended in state.ended]
        # Impossible hypotheses fill beams that lack candidates, in any order.
        assert_same_nbest(
            [(tokens, score) for tokens, score in result if score > IMPOSSIBLE],
            [(tokens, score) for tokens, score in expected if score > IMPOSSIBLE],
        )
    return states
