"""ESPnet's BatchBeamSearch over a decoder without cache: what beam search has to equal."""

import pytest
import torch
from espnet2.asr.ctc import CTC
from espnet2.lm.transformer_lm import TransformerLM
from tiny import EOS, HIDDEN_SIZE, VOCAB_SIZE

from espnet_medusa.upstream.compat import (
    BatchBeamSearch,
    BatchScorerInterface,
    CTCPrefixScorer,
    LengthBonus,
)

SAME_SCORE = 1e-5  # a few steps of float32 between sums of logarithms


class UncachedScorer(BatchScorerInterface):
    """The whole prefix through the teacher-forced forward at every step.

    Args:
        decoder: Its ``forward`` is asked.
    """

    def __init__(self, decoder, constraints=None, prompt_length=1):
        self.decoder, self.constraints, self.prompt_length = decoder, constraints, prompt_length

    def batch_score(self, ys, states, xs):
        lengths = torch.full((len(ys),), xs.size(1))
        with torch.no_grad():
            logits, _ = self.decoder(xs, lengths, ys, torch.full((len(ys),), ys.size(1)))
        scores = logits[:, -1].log_softmax(-1)
        if self.constraints is not None:
            position = torch.full((len(ys),), ys.size(1) - self.prompt_length)
            scores = self.constraints.apply(scores, position)
        return scores, [None] * len(ys)

    def score(self, y, state, x):
        scores, _ = self.batch_score(y[None], [state], x[None])
        return scores[0], None


class Bigrams(BatchScorerInterface):
    """An n-gram scorer as ESPnet's: scores one hypothesis at a time, the state is its own."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(VOCAB_SIZE, VOCAB_SIZE, VOCAB_SIZE, generator=generator)
        self.table = table.log_softmax(-1)

    def init_state(self, x):
        return 0

    def score(self, y, state, x):
        return self.table[state, y[-1]], int(y[-1])


def make_scorers(seed):
    """Scorers beside the decoder, with random weights: LM, bigrams, length bonus; and CTC."""
    torch.manual_seed(seed)
    ctc = CTC(VOCAB_SIZE, HIDDEN_SIZE).eval()
    sizes = {"embed_unit": 8, "att_unit": 8, "head": 2, "unit": 8, "layer": 1}
    lm = TransformerLM(VOCAB_SIZE, pos_enc=None, **sizes).eval()
    return {"lm": lm, "ngram": Bigrams(seed), "length_bonus": LengthBonus(VOCAB_SIZE)}, ctc


def make_weights(ctc=0.0, lm=0.0, ngram=0.0, length_bonus=0.0):
    """Weights as ESPnet's Speech2Text makes them."""
    return {
        "decoder": 1 - ctc, "ctc": ctc, "lm": lm, "ngram": ngram, "length_bonus": length_bonus,
    }  # fmt: skip


def random_weights(rng):
    """Some scorers or none beside the decoder."""
    return make_weights(
        ctc=rng.choice([0.0, 0.3]),
        lm=rng.choice([0.0, 0.4]),
        ngram=rng.choice([0.0, 0.0, 0.2]),
        length_bonus=rng.choice([0.0, 0.3, -0.2]),
    )


class WideBeamSearch(BatchBeamSearch):
    """ESPnet's, which fails where a beam is wider than the first step's choice, that is V."""

    def batch_beam(self, weighted_scores, ids):
        asked, self.beam_size = self.beam_size, min(self.beam_size, weighted_scores.numel())
        found = super().batch_beam(weighted_scores, ids)
        self.beam_size = asked
        return found


class FallingCTC(CTCPrefixScorer):
    """ESPnet's, held to what probabilities of longer and longer prefixes do.

    The blank as a token scores -1e10, ESPnet's log 0, but its state is computed as a label's: the
    token behind it gains 1e10.
    """

    def batch_score_partial(self, y, ids, state, x):
        scores, states = super().batch_score_partial(y, ids, state, x)
        return scores.clamp(max=0.0), states


def espnet_search(
    scorer, seed, weights, beam_size, kind=BatchBeamSearch, ctc_kind=CTCPrefixScorer, **options
):
    """ESPnet's beam search with ``scorer`` as its decoder."""
    scorers, ctc = make_scorers(seed)
    scorers |= {"decoder": scorer, "ctc": ctc_kind(ctc=ctc, eos=EOS)}
    return kind(
        scorers, weights, beam_size, VOCAB_SIZE, EOS, EOS, pre_beam_score_key="full", **options
    )


def assert_same_nbest(found, expected):
    """Tokens, order and scores of two n-best lists: (tokens, score) each.

    Order among scores that float32 does not tell apart means nothing.
    """
    assert len({tuple(tokens) for tokens, _ in found}) == len(found) == len(expected)
    for (tokens, ours), (_, theirs) in zip(found, expected, strict=True):
        assert tokens in [other for other, score in expected if abs(score - theirs) <= SAME_SCORE]
        assert ours == pytest.approx(theirs, abs=1e-4)
