"""The n-best list equals that of ESPnet's BatchBeamSearch, for every draft shape."""

import random
from operator import le

import searches
import torch
from beam_oracle import UncachedScorer, espnet_search, make_weights
from cases import cases, combinations
from searches import CONSTRAINTS, assert_nbest_is_espnets, beam_shape, compare, our_search
from tiny import EOS, VOCAB_SIZE, random_encoder_out, shared_decoder

from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.beam import EndedHypothesis, end_detected
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.search_options import LengthLimits

try:  # ESPnet 202611
    from espnet2.legacy.nets.e2e_asr_common import end_detect
except ImportError:
    from espnet.nets.e2e_asr_common import end_detect

HEADS = [
    "none", "linear", "block", "recurrent", "attending",
    "llama none", "llama projection", "llama latent", "llama recurrent",
]  # fmt: skip
BLANK = 0
DRAFTING = ["linear", "block", "recurrent", "attending", "llama projection", "llama latent"]


@combinations(drafter=[*HEADS, *searches.DRAFT_MODELS], seed=range(6))
def test_nbest_equals_batch_beam_search(drafter, seed):
    rng = random.Random(f"{seed} {drafter}")
    decoder, runtime = searches.drafted_by(seed, drafter, rng.choice([1, 4, 6]))
    searches.assert_random_nbest_is_espnets(rng, seed, runtime, UncachedScorer(decoder))


@combinations(options=[*CONSTRAINTS, {"forced_prefix": [4, 4, 9, 2, 1]}], seed=range(3))
def test_constraints_equal_one_token_at_a_time(seed, options):
    rng = random.Random(f"{seed} {options}")
    decoder = shared_decoder(seed, rng.choice(DRAFTING), 4)
    # CTC's blank, id 0, is impossible here and not in ESPnet: docs/limits.md.
    blank = 0 in options.get("forced_prefix", ())
    weights = make_weights(ctc=0.0 if blank else rng.choice([0.0, 0.3]), length_bonus=0.1)
    beam_size = rng.randint(1, 4)
    constraints, shape = searches.constraints_of(**options), beam_shape(rng, decoder, beam_size)
    audio = *random_encoder_out(seed, [12, 9, 14]), LengthLimits(-7)
    more = {"constraints": constraints, "nbest": searches.random_nbest(rng, beam_size)}
    assert_nbest_is_espnets(decoder, seed, weights, beam_size, shape, *audio, **more)


@combinations(maxlenratio=[0.0, 0.9, -3], ctc=[0.0, 0.3])
def test_a_prompt_of_several_tokens(maxlenratio, ctc):
    decoder = shared_decoder(4)
    weights, prompt = make_weights(ctc=ctc), [3, 1, 2]
    search = our_search(decoder, 4, weights, 3, DraftShape(4, 3))
    scorer = UncachedScorer(decoder, prompt_length=3)
    oracle = espnet_search(scorer, 4, weights, 3, hyp_primer=prompt)
    # With the prompt more labels than frames: ESPnet's CTC scorer fails there.
    limits = LengthLimits(0.7 if ctc and maxlenratio == 0.0 else maxlenratio)
    compare(search, *random_encoder_out(4, [10, 12]), oracle, limits, prompt)


def test_one_frame():
    searched = DraftShape(4, 4), *random_encoder_out(3, [1]), LengthLimits()
    for weights in (make_weights(), make_weights(ctc=0.3)):
        assert_nbest_is_espnets(shared_decoder(3, "block"), 3, weights, 4, *searched)


def test_positions_run_out_before_the_frames():
    decoder = shared_decoder(5, "recurrent", max_target_positions=12)
    encoder_out, lengths = random_encoder_out(5, [40, 30])
    given = decoder, 5, make_weights(length_bonus=3.0), 3, DraftShape(8, 6)
    states = assert_nbest_is_espnets(*given, encoder_out, lengths, LengthLimits(-12))
    states += our_search(*given)(encoder_out, lengths, torch.tensor([[EOS]] * 2), LengthLimits())
    # The length bonus prevents early ends: one token per position, and the end symbol.
    assert max(len(ended.tokens) for state in states for ended in state.ended) == 12 + 1


@combinations(seed=range(3))
def test_batch_equals_singles(seed):
    decoder = shared_decoder(seed, "recurrent", 4)
    search = our_search(decoder, seed, make_weights(ctc=0.3), 4, DraftShape(5, 4))

    def search_rows(rows, *audio):
        states = search(*audio, torch.tensor([[EOS]] * len(rows)))
        for state in states:
            counts = state.statistics
            assert state.steps == counts.decoder_calls + sum(counts.accepted)
            assert len(counts.accepted) == len(counts.drafted)
            assert all(map(le, counts.accepted, counts.drafted))
            assert counts.tokens == len(state.ended[0].tokens)
        return states

    searches.assert_same_alone(search_rows, *random_encoder_out(seed, [12, 5, 14, 8]))


@combinations(seed=range(4))
def test_impossible_ctc_prefixes_stay_impossible(seed):
    """A beam as wide as the vocabulary includes the blank; ESPnet's score of it recovers later."""
    decoder, weights = shared_decoder(seed), make_weights(ctc=0.3)
    (encoder_out, lengths), width = random_encoder_out(seed, [8]), VOCAB_SIZE
    scorer = UncachedScorer(decoder)
    with torch.no_grad():
        theirs = espnet_search(scorer, seed, weights, width)(encoder_out[0])
    assert theirs[0].yseq.tolist() == [EOS, BLANK, EOS] and float(theirs[0].score) == 0.0
    search = our_search(decoder, seed, weights, width, DraftShape(4, width))
    oracle = espnet_search(scorer, seed, weights, width, falling=True)
    compare(search, encoder_out, lengths, oracle, LengthLimits())


@cases((4, {}), (12, {}), (12, {"lm": 0.4, "ngram": 0.2}))
def test_end_detection_stops_the_search(seed, weights):
    searched = DraftShape(4, 4), *random_encoder_out(seed, [20, 16]), LengthLimits()
    weights = make_weights(**weights)
    states = assert_nbest_is_espnets(shared_decoder(seed), seed, weights, 4, *searched)
    assert any(state.stopped and state.steps < 16 for state in states)


def test_end_detection_is_espnets():
    rng, stops = random.Random(0), 0
    for _ in range(500):
        lengths = [rng.randint(2, 7) for _ in range(rng.randint(0, 12))]
        ended = [EndedHypothesis([], rng.uniform(-40, 0), (), length) for length in lengths]
        rows = [{"score": entry.score, "yseq": range(entry.length)} for entry in ended]
        step = rng.randint(2, 8)
        assert end_detected(ended, step) == end_detect(rows, step)
        stops += end_detected(ended, step)
    assert 0 < stops < 500


def test_cross_attention_is_stored_once_and_unused_nodes_are_dropped():
    decoder = build_runtime(shared_decoder(1, "block", max_target_positions=64))
    states, start = [], decoder.start

    def probed(*arguments, **options):
        states.append(start(*arguments, **options))
        return states[-1]

    decoder.start = probed
    search = our_search(decoder, 1, make_weights(), 6, DraftShape(3, 6))
    search(*random_encoder_out(1, [40, 33]), torch.tensor([[EOS]] * 2))
    assert states[0].encoder_keys_values[0].size(0) <= 2, "not one per hypothesis"
    # 6 hypotheses of at most 40 tokens, and the last drafts.
    assert states[0].cache.capacity <= 2 * 6 * 40
