"""Stock BatchBeamSearch over cached nodes: the n-best list of the uncached decoder."""

import pytest
import torch
from espnet2.asr.ctc import CTC
from espnet2.lm.transformer_lm import TransformerLM
from tiny import EOS, HIDDEN_SIZE, VOCAB_SIZE, random_memory, tiny_decoder

from espnet_medusa.compat import (
    BatchBeamSearch,
    BatchScorerInterface,
    BeamSearch,
    CTCPrefixScorer,
    LengthBonus,
)

SOS = EOS


class UncachedScorer(BatchScorerInterface):
    """The oracle: the whole prefix through the teacher-forced forward at every step."""

    def __init__(self, decoder):
        self.decoder = decoder

    def batch_score(self, ys, states, xs):
        lengths = torch.full((len(ys),), xs.size(1))
        with torch.no_grad():
            logits, _ = self.decoder(xs, lengths, ys, torch.full((len(ys),), ys.size(1)))
        return logits[:, -1].log_softmax(-1), [None] * len(ys)

    def score(self, y, state, x):
        scores, _ = self.batch_score(y[None], [state], x[None])
        return scores[0], None


def search(scorer, seed, beam_size, ctc_weight, lm_weight, kind=BatchBeamSearch, primer=None):
    torch.manual_seed(seed)
    ctc = CTC(VOCAB_SIZE, HIDDEN_SIZE).eval()
    lm = TransformerLM(VOCAB_SIZE, pos_enc=None, embed_unit=8, att_unit=8, head=2, unit=8, layer=1)
    scorers = {
        "decoder": scorer,
        "ctc": CTCPrefixScorer(ctc=ctc, eos=EOS),
        "lm": lm.eval(),
        "length_bonus": LengthBonus(VOCAB_SIZE),
    }
    weights = {
        "decoder": 1 - ctc_weight, "ctc": ctc_weight, "lm": lm_weight, "length_bonus": 0.2,
    }  # fmt: skip
    return kind(
        scorers, weights, beam_size, VOCAB_SIZE, SOS, EOS, pre_beam_score_key="full",
        hyp_primer=primer,
    )  # fmt: skip


def assert_same_nbest(found, expected):
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.yseq.tolist() == theirs.yseq.tolist()
        assert float(ours.score) == pytest.approx(float(theirs.score), abs=1e-4)


@pytest.mark.parametrize(("ctc_weight", "lm_weight"), [(0.0, 0.0), (0.3, 0.0), (0.3, 0.4)])
@pytest.mark.parametrize("beam_size", [1, 4, 7])
@pytest.mark.parametrize("seed", range(3))
def test_nbest_equals_uncached(seed, beam_size, ctc_weight, lm_weight):
    decoder = tiny_decoder(seed, "block")
    memory, _ = random_memory(seed, [14])
    arguments = (seed, beam_size, ctc_weight, lm_weight)
    with torch.no_grad():
        found = search(decoder, *arguments)(memory[0], maxlenratio=-10)
        expected = search(UncachedScorer(decoder), *arguments)(memory[0], maxlenratio=-10)
    assert_same_nbest(found, expected)


@pytest.mark.parametrize("maxlenratio", [0.0, 0.9, -3])
@pytest.mark.parametrize("minlenratio", [0.0, 0.2])
def test_length_ratios_and_primer(maxlenratio, minlenratio):
    decoder = tiny_decoder(4)
    memory, _ = random_memory(4, [10])
    with torch.no_grad():
        found, expected = (
            search(scorer, 4, 3, 0.3, 0.0, primer=[3, 1, 2])(
                memory[0], maxlenratio=maxlenratio, minlenratio=minlenratio
            )
            for scorer in (decoder, UncachedScorer(decoder))
        )
    assert_same_nbest(found, expected)


def test_unbatched_beam_search_scores_sibling_by_sibling():
    decoder = tiny_decoder(6)
    memory, _ = random_memory(6, [8])
    with torch.no_grad():
        found, expected = (
            search(scorer, 6, 4, 0.0, 0.0, kind=BeamSearch)(memory[0], maxlenratio=-12)
            for scorer in (decoder, UncachedScorer(decoder))
        )
    assert_same_nbest(found, expected)


def test_each_step_evaluates_one_node_per_hypothesis_and_forgets_dead_ones():
    decoder = tiny_decoder(1, max_target_positions=64)
    memory, _ = random_memory(1, [12])
    beam = search(decoder, 1, 4, 0.0, 0.0)
    with torch.no_grad():
        nbest = beam(memory[0], maxlenratio=-40)
    state = nbest[0].states["decoder"].shared.state
    assert state.nodes <= 1 + 4 * (state.calls - 1)
    # Dead nodes never outnumber the living: at most two times 4 hypotheses of 40 tokens.
    assert state.tree.num_nodes <= 2 * 4 * 41
    assert state.memory[0][0].size(0) == 1, "cross-attention keys exist once per utterance"


def test_a_dropped_hypothesis_cannot_come_back():
    decoder = tiny_decoder(0)
    memory, _ = random_memory(0, [5])
    with torch.no_grad():
        start = decoder.batch_init_state(memory[0])
        ys = torch.tensor([[SOS]])
        _, first = decoder.batch_score(ys, [start], memory)
        wide = torch.tensor([[SOS, token] for token in range(8)])
        _, second = decoder.batch_score(wide, first * 8, memory)
        decoder.batch_score(torch.tensor([[SOS, 0, 1]]), second[:1], memory)
        with pytest.raises(RuntimeError, match="left the beam and came back"):
            decoder.batch_score(torch.tensor([[SOS, 3, 1]]), second[3:4], memory)
