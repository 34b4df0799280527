"""Our searches with tiny decoders, comparisons with their oracles, and random options."""

import copy
import random

import beam_oracle
import pytest
import torch
from beam_oracle import UncachedScorer, assert_same_nbest, espnet_search, make_scorers
from tiny import EOS, VOCAB_SIZE, bounds, plain_greedy, random_encoder_out, tiny_decoder, utterances

from espnet_medusa.decoding.draft.model import DraftModelProposer
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.acceptance import AcceptanceRule, exact
from espnet_medusa.decoding.search.beam import beam_search
from espnet_medusa.decoding.search.build import SearchModel, build_beam, build_greedy
from espnet_medusa.decoding.search.constraints import build_constraints
from espnet_medusa.decoding.search.drafters import NO_SOURCES
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.search.scores import Scorers
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions
from espnet_medusa.networks.espnet_compat import PROMPT_COUNTS

PROMPT = [3, 1]
HEADS = [
    "linear", "block", "recurrent", "attending", "latent",
    "llama projection", "llama latent", "llama block", "llama recurrent",
]  # fmt: skip
DRAFT_MODELS = ["near", "other", "for llama", "of llama"]
EXACT = AcceptanceRule(exact)
CONSTRAINTS = [
    {"suppress_tokens": [0, 2]},
    {"begin_suppress_tokens": [1, 3, 4, EOS]},
    {"forced_prefix": [4, 4, 0, 9, 2, 1, 3]},
    {"forced_prefix": [8], "begin_suppress_tokens": [2, 6], "suppress_tokens": [0]},
    {"exponential_decay_length_penalty": [3, 1.2]},
    {"exponential_decay_length_penalty": [2, 0.9], "suppress_tokens": [5]},
]
IMPOSSIBLE = -1e8


def runtime_of(decoder):
    """Return the ``TreeDecoder`` of a trained module; return a ``TreeDecoder`` unchanged."""
    return build_runtime(decoder) if isinstance(decoder, torch.nn.Module) else decoder


def constraints_of(**options):
    return build_constraints(SearchOptions(**options), VOCAB_SIZE, EOS)


def our_greedy(decoder, shape=None, rule=EXACT, constraints=None, proposer=None):
    """Build greedy search; by default with the decoder's proposer, as deep as it has heads."""
    decoder, constraints = runtime_of(decoder), constraints or constraints_of()
    shape = shape or DraftShape(depth=decoder.num_heads)
    return greedy_search(decoder, rule, constraints, proposer or decoder.proposer(), shape)


def decode(
    decoder, encoder_out, lengths, max_lengths, rule=EXACT, min_lengths=None, shape=None,
    proposer=None, inputs=None, prompt=PROMPT, **constraints,
):  # fmt: skip
    """Decode with ``our_greedy``; ``constraints`` are fields of ``SearchOptions``."""
    search = our_greedy(decoder, shape, rule, constraints_of(**constraints), proposer)
    prompts = torch.tensor([prompt] * len(lengths))
    return search(encoder_out, lengths, prompts, bounds(max_lengths, min_lengths), inputs)


def assert_plain(
    decoder, encoder_out, lengths, states, max_lengths, min_lengths=None, prompt=PROMPT
):
    """Compare search states with teacher-forced greedy search of each utterance alone."""
    limits = max_lengths, min_lengths or [0] * len(states)
    for alone, state, *most in zip(utterances(encoder_out, lengths), states, *limits, strict=True):
        tokens, score, ended = plain_greedy(decoder, alone, prompt, *most, guess=state.tokens)
        assert (state.tokens, state.ended) == (tokens, ended)
        assert state.hypothesis.score == pytest.approx(score, abs=1e-4)
        counts = state.statistics
        assert counts.tokens == len(tokens) + ended == counts.decoder_calls + sum(counts.accepted)


def greedy_texts(decoder, encoder_out, lengths, max_lengths) -> list[list[int]]:
    """Return texts of greedy search, each checked against teacher-forced greedy search."""
    shape = DraftShape(0)
    states = decode_exactly(decoder, encoder_out, lengths, max_lengths, shape=shape)
    return [state.tokens for state in states]


def decode_exactly(
    module, encoder_out, lengths, most, least=None, decoder=None, prompt=PROMPT, **options
):
    """Decode greedily, by default with ``module``; check the texts and return the states."""
    options |= {"min_lengths": least, "prompt": prompt}
    states = decode(decoder or module, encoder_out, lengths, most, **options)
    assert_plain(module, encoder_out, lengths, states, most, least, prompt)
    return states


COUNTS = ("decoder_calls", "nodes", "tokens", "drafted", "accepted", "draft_calls", "draft_nodes")


def assert_same_alone(search, encoder_out, lengths):
    """Compare hypotheses and counts of a batch with those of each utterance alone.

    ``search`` maps row numbers, their memory and lengths to search states.
    """
    together = search([*range(len(lengths))], encoder_out, lengths)
    for row, (state, single) in enumerate(
        zip(together, utterances(encoder_out, lengths), strict=True)
    ):
        [alone] = search([row], single, lengths[[row]])
        nbest, expected = ([(e.tokens, e.score) for e in s.n_best] for s in (state, alone))
        assert_same_nbest(nbest, expected)
        for name in COUNTS:
            assert getattr(state.statistics, name) == getattr(alone.statistics, name), name


def assert_decoded_alike_alone(decoder, most, encoder_out, lengths, inputs=None, **options):
    runtime = runtime_of(decoder)

    def search(rows, *audio):
        some = inputs and [inputs[row] for row in rows]
        return decode(runtime, *audio, [most[row] for row in rows], inputs=some, **options)

    assert_same_alone(search, encoder_out, lengths)


def our_search(
    decoder, seed, weights, beam_size, shape, constraints=None, proposer=None, ctc=None,
    window_margin=0, **more,
):  # fmt: skip
    decoder, (scorers, own_ctc) = runtime_of(decoder), make_scorers(seed)
    log_probs = (ctc or own_ctc).log_softmax
    scorers = Scorers(weights, scorers, log_probs, PROMPT_COUNTS, window_margin)
    options = constraints or constraints_of(), proposer or decoder.proposer(), shape
    return beam_search(decoder, scorers, beam_size, *options, **more)


def compare(search, encoder_out, lengths, oracle, limits, prompt=(EOS,), inputs=None):
    """Check that a batch has the oracle's best hypotheses; return its search states."""
    states = search(encoder_out, lengths, torch.tensor([[*prompt]] * len(lengths)), limits, inputs)
    ratios = {"maxlenratio": limits.maxlenratio, "minlenratio": limits.minlenratio}
    for row, state in enumerate(states):
        with torch.no_grad():
            expected = oracle(encoder_out[row, : lengths[row]], **ratios)
        expected = [(hyp.yseq.tolist(), float(hyp.score)) for hyp in expected]
        result = [([*prompt, *ended.tokens], ended.score) for ended in state.ended]
        # Impossible hypotheses fill beams that lack candidates, in any order.
        possible = (
            [(tokens, score) for tokens, score in n_best if score > IMPOSSIBLE]
            for n_best in (result, expected)
        )
        assert_same_nbest(*possible, search.strategy.ranking.nbest)
    return states


def assert_nbest_is_espnets(
    decoder, seed, weights, beam_size, shape, encoder_out, lengths, limits, inputs=None, **options
):
    search = our_search(decoder, seed, weights, beam_size, shape, **options)
    scorer = UncachedScorer(decoder, options.get("constraints"))
    oracle = espnet_search(scorer, seed, weights, beam_size)
    return compare(search, encoder_out, lengths, oracle, limits, inputs=inputs)


def assert_random_nbest_is_espnets(rng, seed, decoder, scorer):
    """Compare a random beam search with ESPnet's; ``scorer`` is the same decoder for ESPnet."""
    beam_size, weights = rng.randint(1, 8), beam_oracle.random_weights(rng)
    limits = LengthLimits(rng.choice([0.0, 0.5, 0.9, -1, -6]), rng.choice([0.0, 0.2, -2]))
    audio = random_encoder_out(seed, [rng.randint(7, 18) for _ in range(rng.randint(1, 4))])
    normalize = {"normalize_length": rng.random() < 0.3}
    shape, nbest = beam_shape(rng, decoder, beam_size), random_nbest(rng, beam_size)
    search = our_search(decoder, seed, weights, beam_size, shape, nbest=nbest, **normalize)
    compare(search, *audio, espnet_search(scorer, seed, weights, beam_size, **normalize), limits)


def build_search(runtime, options: SearchOptions, beam_size=3, sources=NO_SOURCES, device="cpu"):
    """Build greedy or beam search by ``options.search``, without CTC and language model."""
    model = SearchModel(runtime, VOCAB_SIZE, EOS, torch.device(device), sources=sources)
    greedy = options.search == "greedy"
    return build_greedy(options, model) if greedy else build_beam(options, model, beam_size)


def run_search(search, encoder_out, lengths, max_length):
    prompt = torch.full((len(lengths), 1), EOS, device=encoder_out.device)
    return search(encoder_out, lengths, prompt, LengthLimits(-max_length))


def drafted_by(seed: int, drafter: str, num_heads: int = 4, **options):
    """Return a trained module and its ``TreeDecoder`` with heads or with a draft model.

    Draft models: "near": a slightly different Whisper decoder, whose drafts are often accepted;
    "other": another Whisper decoder; "for llama": a Whisper decoder for Speech-LLaMA; "of llama":
    Speech-LLaMA for a Whisper decoder.
    """
    if drafter not in DRAFT_MODELS:
        module = tiny_decoder(seed, drafter, num_heads, **options)
        return module, build_runtime(module)
    module = tiny_decoder(seed, "llama none" if drafter == "for llama" else "none", **options)
    if drafter == "near":
        return module, with_draft(module, nearly(module, seed))
    draft = tiny_decoder(seed + 1000, "llama none" if drafter == "of llama" else "none")
    return module, with_draft(module, draft)


def nearly(module, seed: int, noise: float = 0.05):
    generator = torch.Generator().manual_seed(seed)
    module = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return module


def with_draft(module, draft):
    decoder, proposer = build_runtime(module), DraftModelProposer(build_runtime(draft), EOS)
    decoder.proposer = lambda vocabulary=None, precision=None: proposer
    return decoder


def greedy_shape(rng: random.Random, num_heads: int) -> DraftShape:
    depth, least = rng.randint(0, num_heads), {"min_probability": rng.choice([0, 0, 0.01, 0.1])}
    if depth and rng.random() < 0.3:
        depth = min(depth, 3)
        return DraftShape(depth, choices=tuple(rng.randint(1, 3) for _ in range(depth)), **least)
    size = rng.choice([1, 1, 2, 4, 20]), rng.choice([None, None, 1, 3, 9])
    return DraftShape(depth, *size, **least)


def beam_shape(rng: random.Random, decoder, beam_size: int, proposer=None) -> DraftShape:
    proposer = proposer or runtime_of(decoder).proposer()
    most = 0 if proposer is None else proposer.max_steps or 7
    depth, width = rng.randint(0, most), rng.choice([1, beam_size, 2 * beam_size])
    return DraftShape(depth, width, rng.choice([None, None, 1, 6, 20]))


def random_nbest(rng: random.Random, beam_size: int) -> int | None:
    return rng.choice([None, rng.randint(1, beam_size), beam_size + 3])
