"""ESPnet's BatchBeamSearch over a decoder without cache: the oracle of beam search."""

from functools import cache

import pytest
import torch
from espnet2.asr.ctc import CTC
from espnet2.lm.transformer_lm import TransformerLM
from tiny import EOS, HIDDEN_SIZE, VOCAB_SIZE

from espnet_medusa.networks import espnet_compat as compat

SAME_SCORE = 1e-5  # a few steps of float32 between sums of logarithms


class UncachedScorer(compat.BatchScorerInterface):
    """Scores the whole prefix with the decoder's teacher-forced ``forward`` at every step."""

    def __init__(self, decoder, constraints=None, prompt_length=1):
        self.decoder, self.constraints, self.prompt_length = decoder, constraints, prompt_length

    def batch_score(self, ys, states, xs):
        lengths = torch.full((len(ys),), xs.size(1))
        with torch.no_grad():
            logits, _ = self.decoder(xs, lengths, ys, torch.full((len(ys),), ys.size(1)))
        return self.log_probs(logits[:, -1], ys), [None] * len(ys)

    def log_probs(self, logits, ys):
        scores = logits.log_softmax(-1)
        if self.constraints is not None:
            position = torch.full((len(ys),), ys.size(1) - self.prompt_length)
            scores = self.constraints.apply(scores, position)
        return scores

    def score(self, y, state, x):
        return self.batch_score(y[None], [state], x[None])[0][0], None


class Bigrams(compat.BatchScorerInterface):
    """A random n-gram model which, like ESPnet's, scores one hypothesis at a time."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(VOCAB_SIZE, VOCAB_SIZE, VOCAB_SIZE, generator=generator)
        self.table = table.log_softmax(-1)

    def init_state(self, x):
        return 0

    def score(self, y, state, x):
        return self.table[state, y[-1]], int(y[-1])


@cache
def make_scorers(seed):
    """Return random scorers (LM, bigrams, length bonus) and a random CTC; tests share them."""
    torch.default_generator.manual_seed(seed)
    ctc = CTC(VOCAB_SIZE, HIDDEN_SIZE).eval()
    sizes = {"embed_unit": 8, "att_unit": 8, "head": 2, "unit": 8, "layer": 1}
    lm = TransformerLM(VOCAB_SIZE, pos_enc=None, **sizes).eval()
    length_bonus = compat.LengthBonus(VOCAB_SIZE)
    return {"lm": lm, "ngram": Bigrams(seed), "length_bonus": length_bonus}, ctc


def make_weights(ctc=0.0, lm=0.0, ngram=0.0, length_bonus=0.0):
    """Return the weights that ESPnet's Speech2Text computes from its options."""
    return {"decoder": 1 - ctc, "ctc": ctc, "lm": lm, "ngram": ngram, "length_bonus": length_bonus}


def random_weights(rng):
    ctc, lm = rng.choice([0.0, 0.3]), rng.choice([0.0, 0.4])
    ngram, length_bonus = rng.choice([0.0, 0.0, 0.2]), rng.choice([0.0, 0.3, -0.2])
    return make_weights(ctc, lm, ngram, length_bonus)


class WideBeamSearch(compat.BatchBeamSearch):
    """ESPnet's search; its beam may be wider than the vocabulary, unlike in ESPnet's own class."""

    def batch_beam(self, weighted_scores, ids):
        beam_size, self.beam_size = self.beam_size, min(self.beam_size, weighted_scores.numel())
        best = super().batch_beam(weighted_scores, ids)
        self.beam_size = beam_size
        return best


class FallingCTC(compat.CTCPrefixScorer):
    """ESPnet's, with scores that do not increase as the prefix grows.

    The blank as a token scores -1e10, ESPnet's log 0, but its state is computed like a label's: the
    token after it gains 1e10.
    """

    def batch_score_partial(self, y, ids, state, x):
        scores, states = super().batch_score_partial(y, ids, state, x)
        return scores.clamp(max=0.0), states


def espnet_search(
    scorer, seed, weights, beam_size, kind=compat.BatchBeamSearch, falling=False, ctc=None,
    **options,
):  # fmt: skip
    """Build ESPnet's beam search with ``scorer`` as its decoder.

    ``ctc`` is a CTC scorer. Without it, a random branch scores, with ``falling`` by FallingCTC.
    """
    scorers, branch = make_scorers(seed)
    if ctc is None:
        ctc = (FallingCTC if falling else compat.CTCPrefixScorer)(ctc=branch, eos=EOS)
    common = weights, beam_size, VOCAB_SIZE, EOS, EOS
    scorers = {**scorers, "decoder": scorer, "ctc": ctc}
    return kind(scorers, *common, pre_beam_score_key="full", **options)


def assert_same_nbest(result, expected, nbest=None):
    """Compare n-best lists of (tokens, score); equal scores may come in any order.

    ``nbest``: the result has that many of the expected ones.
    """
    best = expected[:nbest]
    assert len({tuple(tokens) for tokens, _ in result}) == len(result) == len(best)
    for (tokens, ours), (_, theirs) in zip(result, best, strict=True):
        steps = max(1.0, abs(theirs) / 16)  # float32's steps grow with the number
        near = steps * SAME_SCORE
        assert tokens in [other for other, score in expected if abs(score - theirs) <= near]
        assert ours == pytest.approx(theirs, abs=steps * 1e-4)
