"""ESPnet's BatchBeamSearch with cached nodes returns the n-best list of the uncached decoder."""

import copy
import inspect
import pickle

import pytest
import torch
from beam_oracle import UncachedScorer, assert_same_nbest, espnet_search, make_weights
from cases import cases, combinations
from tiny import EOS, random_encoder_out, tiny_decoder

from espnet_medusa.networks.espnet_compat import BatchBeamSearch, BeamSearch


def nbest(scorer, seed, weights, beam_size, encoder_out, limits, **options):
    result = espnet_search(scorer, seed, weights, beam_size, **options)(encoder_out, **limits)
    assert result
    return [(hypothesis.yseq.tolist(), float(hypothesis.score)) for hypothesis in result]


def compare(decoder, *arguments, **options):
    scorers = decoder, UncachedScorer(decoder)
    assert_same_nbest(*(nbest(scorer, *arguments, **options) for scorer in scorers))


@pytest.mark.parametrize(("ctc", "lm"), [(0.0, 0.0), (0.3, 0.0), (0.3, 0.4)])
@combinations(beam_size=[1, 4, 7], seed=range(3))
def test_nbest_equals_uncached(seed, beam_size, ctc, lm):
    decoder = tiny_decoder(seed, ["block", "llama latent", "linear"][seed])
    encoder_out, _ = random_encoder_out(seed, [14])
    weights = make_weights(ctc, lm, length_bonus=0.2)
    compare(decoder, seed, weights, beam_size, encoder_out[0], {"maxlenratio": -10})


@combinations(maxlenratio=[0.0, 0.9, -3], minlenratio=[0.0, 0.2])
def test_length_ratios_and_primer(maxlenratio, minlenratio):
    encoder_out, _ = random_encoder_out(4, [10])
    limits = {"maxlenratio": maxlenratio, "minlenratio": minlenratio}
    compare(tiny_decoder(4), 4, make_weights(0.3), 3, encoder_out[0], limits, hyp_primer=[3, 1, 2])


def test_unbatched_beam_search_scores_sibling_by_sibling():
    encoder_out, _ = random_encoder_out(6, [8])
    compare(
        tiny_decoder(6), 6, make_weights(), 4, encoder_out[0], {"maxlenratio": -12}, kind=BeamSearch
    )


@pytest.mark.skipif(
    "x_lengths" not in inspect.signature(BatchBeamSearch.forward).parameters,
    reason="ESPnet decodes batches since 202611",
)
@cases((0, 0.0), (1, 0.3))
def test_batches_of_espnet(seed, ctc):
    decoder, sizes = tiny_decoder(seed), [14, 9, 12]
    encoder_out, lengths = random_encoder_out(seed, sizes)
    search = espnet_search(decoder, seed, make_weights(ctc), 3)
    alone = [
        search(row[:size], maxlenratio=-9) for row, size in zip(encoder_out, sizes, strict=True)
    ]
    together = search(encoder_out, x_lengths=lengths, maxlenratio=-9)
    for one, other in zip(alone, together, strict=True):
        assert_same_nbest(*([(h.yseq.tolist(), float(h.score)) for h in n] for n in (one, other)))


def test_each_step_computes_one_node_per_hypothesis_and_drops_dead_ones():
    decoder = tiny_decoder(1, max_target_positions=64)
    encoder_out, _ = random_encoder_out(1, [12])
    result = espnet_search(decoder, 1, make_weights(), 4)(encoder_out[0], maxlenratio=-40)
    state = result[0].states["decoder"].shared.state
    assert state.nodes <= 1 + 4 * (state.calls - 1)
    # Dead nodes are at most half of all: of two times 4 hypotheses of 40 tokens.
    assert state.num_nodes <= 2 * 4 * 41
    assert state.encoder_keys_values[0].size(0) == 1, (
        "cross-attention keys exist once per utterance"
    )


def test_a_dropped_hypothesis_cannot_come_back():
    decoder = tiny_decoder(0)
    encoder_out, _ = random_encoder_out(0, [5])
    start = decoder.batch_init_state(encoder_out[0])
    _, first = decoder.batch_score(torch.tensor([[EOS]]), [start], encoder_out)
    wide = torch.tensor([[EOS, token] for token in range(8)])
    _, second = decoder.batch_score(wide, first * 8, encoder_out)
    decoder.batch_score(torch.tensor([[EOS, 0, 1]]), second[:1], encoder_out)
    with pytest.raises(RuntimeError, match="a dropped hypothesis is scored again"):
        decoder.batch_score(torch.tensor([[EOS, 3, 1]]), second[3:4], encoder_out)


@combinations(heads=["none", "block"])
def test_changed_weights_are_used_for_the_next_utterance(heads):
    decoder = tiny_decoder(3, heads)
    encoder_out, _ = random_encoder_out(3, [9])
    arguments = (3, make_weights(), 3, encoder_out[0], {"maxlenratio": -8})
    before = nbest(decoder, *arguments)
    assert nbest(decoder, *arguments) == before
    decoder.layers[1].fc2.weight.mul_(-1.5)
    compare(decoder, *arguments)
    assert nbest(decoder, *arguments) != before
    decoder.load_state_dict(tiny_decoder(3, heads).state_dict())
    assert nbest(decoder, *arguments) == before


def test_a_decoder_can_be_copied_and_pickled_after_scoring():
    # Large enough for blocked weights.
    decoder = tiny_decoder(0, "none", vocab_size=5000)
    encoder_out, _ = random_encoder_out(0, [5])
    start = decoder.batch_init_state(encoder_out[0])
    expected, _ = decoder.batch_score(torch.tensor([[EOS]]), [start], encoder_out)
    for copied in (copy.deepcopy(decoder), pickle.loads(pickle.dumps(decoder))):
        start = copied.batch_init_state(encoder_out[0])
        assert start.shared.decoder is not decoder.batch_init_state(encoder_out[0]).shared.decoder
        result, _ = copied.batch_score(torch.tensor([[EOS]]), [start], encoder_out)
        assert torch.equal(result, expected)
