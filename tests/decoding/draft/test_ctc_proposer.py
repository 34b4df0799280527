"""CTC drafts: alignment with the CTC hypothesis, exact searches, mixtures with heads."""

import math
import random
from dataclasses import replace

import pytest
import searches
import torch
from beam_oracle import make_scorers, random_weights
from cases import cases, combinations
from rapidfuzz.distance import Levenshtein
from recorded_calls import record_calls
from refusals import refuses
from scripted import (
    ScriptedCTC,
    ctc_context,
    edited,
    path_from,
    scripted_calls,
    scripted_encoder_out,
)
from searches import PROMPT, decode, decode_exactly
from tiny import EOS, VOCAB_SIZE, random_encoder_out, shared_decoder

from espnet_medusa.decoding.draft.alignment import advance_rows
from espnet_medusa.decoding.draft.ctc import CTCProposer
from espnet_medusa.decoding.draft.mixed import MixedProposer
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.tree.prefix import Prefix

BLANK = VOCAB_SIZE  # CTC has all tokens of the decoder
BIG = 60  # vocabulary size with which texts seldom repeat a token


def begin(texts, vocabulary=None, sure=0.9):
    """Return a proposer whose CTC hypotheses are ``texts``, and the utterances' roots."""
    encoder_out, lengths = random_encoder_out(0, [4] * len(texts))
    ctc = ScriptedCTC(texts, encoder_out, BLANK, sure)
    proposer = CTCProposer(ctc, VOCAB_SIZE, EOS, BLANK, vocabulary)
    roots = [Prefix(PROMPT[-1]) for _ in texts]
    return proposer.begin(ctc_context(roots, encoder_out, lengths)), roots


@combinations(seed=range(20))
def test_rows_are_edit_distances(seed):
    rng = random.Random(seed)
    size, length = rng.randint(0, 9), rng.randint(1, 12)
    hypothesis = torch.randint(0, 3, (4, size), generator=torch.Generator().manual_seed(seed))
    prefixes = [[rng.randrange(3) for _ in range(length)] for _ in range(4)]
    rows = torch.zeros(4, size + 1)
    for tokens in torch.tensor(prefixes).t():
        rows = advance_rows(rows, hypothesis != tokens[:, None])
    rows = rows + torch.arange(size + 1) - length
    for prefix, text, row in zip(prefixes, hypothesis.tolist(), rows.tolist(), strict=True):
        assert row == [Levenshtein.distance(prefix, text[:end]) for end in range(size + 1)]


def place_weights(prefix, *texts):
    proposer, roots = begin(texts)
    return proposer.hypotheses.weights(proposer.start([path_from(roots[0], prefix)]))[0]


@cases(
    ([], 0),
    ([1, 2], 2),
    ([1, 9], 2),  # substitution
    ([1, 9, 3], 3),  # after a substitution
    ([1, 3], 3),  # CTC inserted a token
    ([1, 9, 2], 2),  # CTC deleted a token
    ([9, 8], 2),  # no match: the diagonal
    ([1, 2, 3, 4, 5, 7, 8], 5),  # after the end
)
def test_the_best_place_after_a_prefix(prefix, expected):
    assert int(place_weights(prefix, [1, 2, 3, 4, 5]).argmax()) == expected


@combinations(size=[400, 401])
def test_sums_of_weights_are_exact(size):
    assert int(place_weights([2] * size, [2] * 400 + [3]).argmax()) == size


def test_weights_of_places():
    weights = place_weights([1, 9], [1, 2, 3, 4, 5], [6] * 9)
    assert float(weights.sum()) == pytest.approx(1)
    assert (weights[6:] == 0).all(), "padding of a shorter hypothesis"
    # The best place counts more than equally near ones, and these more than farther ones.
    best, near, far = weights[2], weights[1], weights[0]
    assert float(near / best) == pytest.approx(math.exp(-3), rel=0.01)
    assert float(far / near) == pytest.approx(math.exp(-3), rel=0.01)


def next_tokens(proposer, states):
    return proposer.token_ids(proposer.logits(states).argmax(-1)).tolist()


def test_start_equals_advance():
    proposer, (first, second) = begin([[1, 2, 3, 4, 5], [7, 8]])
    paths = [(first, [1, 2, 9]), (second, [7]), (first, []), (first, [1]), (first, [1, 2, 9])]
    prefixes = [path_from(root, path) for root, path in paths]
    states = proposer.start(prefixes)
    assert next_tokens(proposer, states) == [4, 8, 1, 2, 4]
    tokens = [4, 8, 9, 2, 9]
    advanced = proposer.advance(states, torch.tensor(tokens))
    assert next_tokens(proposer, advanced) == [5, EOS, 2, 3, 5]
    children = [prefix.child(token) for prefix, token in zip(prefixes, tokens, strict=True)]
    started = proposer.start(children)
    assert torch.equal(advanced.rows, started.rows)
    assert torch.equal(advanced.utterances, started.utterances)


def test_each_prefix_is_aligned_once(monkeypatch):
    proposer, [root] = begin([[1, 2, 3, 4, 5]])
    tip, kind = path_from(root, [1, 2, 9]), type(proposer.hypotheses)
    advanced = record_calls(monkeypatch, kind, "advance", lambda _, states, new: new.tolist())
    proposer.start([tip])
    assert advanced == [[1], [2], [9]]
    side = path_from(root, [1, 7])
    proposer.start([side, path_from(tip, [4])])
    assert advanced[3:] == [[7, 4]]
    proposer.keep([tip])
    assert {*proposer.known} == {*tip.ancestors()}, "rejected prefixes are dropped"
    proposer.start([side, tip])
    assert advanced[4:] == [[7]]


def test_alternatives_come_from_other_places():
    proposer, [root] = begin([[1, 2, 3, 4, 5]], sure=0.8)
    probabilities = proposer.logits(proposer.start([path_from(root, [1, 9])]))[0].softmax(-1)
    best = probabilities.argsort(descending=True)[:2].tolist()
    assert best == [3, 2], "after a substitution, after a token that CTC deleted"
    assert 0.6 < probabilities[3] < 0.8


def test_only_tokens_of_the_vocabulary_are_drafted():
    whole, [root] = begin([[1, 2, 3]])
    vocabulary = [7, 3, EOS, 1]
    limited, [limited_root] = begin([[1, 2, 3]], torch.tensor(vocabulary))
    paths = [path_from(limited_root, path) for path in ([], [1], [1, 2], [1, 2, 3])]
    logits = limited.logits(limited.start(paths))
    assert logits.shape == (4, 4) and logits.isfinite().all()
    tokens = limited.token_ids(logits.argmax(-1)).tolist()
    assert [tokens[0], *tokens[2:]] == [1, 3, EOS]
    expected = whole.logits(whole.start([root]))[0, vocabulary].softmax(-1)
    torch.testing.assert_close(logits[0].softmax(-1), expected, rtol=0.0, atol=0.05)


def calls_for(texts, hypotheses, width=1):
    ctc = ScriptedCTC(hypotheses, scripted_encoder_out(len(texts))[0], BIG)
    proposer = CTCProposer(ctc, BIG, BIG - 1, BIG)
    return scripted_calls(texts, proposer, DraftShape(60, width), BIG, BIG - 1)


def random_texts(seed):
    rng = random.Random(seed)
    return [[rng.randrange(BIG - 1) for _ in range(rng.randint(1, 30))] for _ in range(6)]


@combinations(num_edits=[0, 1, 2, 4], seed=range(5))
def test_drafts_continue_after_errors_of_ctc(seed, num_edits):
    rng, texts = random.Random(seed), random_texts(seed)
    hypotheses = [edited(text, num_edits, BIG - 1, rng) for text in texts]
    assert max(calls_for(texts, hypotheses)) <= 1 + 2 * num_edits


def test_calls_per_substitution_insertion_and_deletion():
    text = [*range(2, 22)]
    hypotheses = [[*text[:9], *new, *text[old:]] for new, old in (([30], 10), ([30], 9), ([], 10))]
    assert calls_for([text] * 3, hypotheses) == [2, 2, 3]
    # A tree of width 2 has both continuations after a mismatch.
    assert calls_for([text] * 3, hypotheses, width=2) == [2, 2, 2]


def make_proposer(kind, decoder, encoder_out, lengths, seed):
    """Return CTC with random weights, or one with hypotheses near the greedy texts."""
    rng = random.Random(seed)
    if kind.startswith("random"):
        _, ctc = make_scorers(seed)
        proposer = CTCProposer(ctc.log_softmax, VOCAB_SIZE, EOS)
    else:
        texts = searches.greedy_texts(decoder, encoder_out, lengths, [30] * len(lengths))
        hypotheses = [edited(text, rng.randint(0, 6), EOS, rng) for text in texts]
        sure = rng.choice([0.5, 0.9, 1.0])
        proposer = CTCProposer(
            ScriptedCTC(hypotheses, encoder_out, BLANK, sure), VOCAB_SIZE, EOS, BLANK
        )
    if kind.endswith("mixed"):
        heads = build_runtime(decoder).proposer()
        return MixedProposer(proposer, heads, rng.choice([0.0, 0.3, 0.7, 1.0]))
    return proposer


KINDS = ["random", "edited", "random mixed", "edited mixed"]
HEADS = ["linear", "block", "recurrent", "attending", "llama latent"]


@combinations(kind=KINDS, seed=range(6))
def test_greedy_text_is_exact(seed, kind):
    rng = random.Random(f"{seed} {kind}")
    decoder = shared_decoder(seed, rng.choice(HEADS))
    encoder_out, lengths = random_encoder_out(
        seed, [rng.randint(1, 12) for _ in range(rng.randint(1, 5))]
    )
    most = [rng.choice([1, 2, 7, 25, 50]) for _ in lengths]
    proposer = make_proposer(kind, decoder, encoder_out, lengths, seed)
    shape = searches.greedy_shape(rng, rng.choice([1, 7, 40]))
    decode_exactly(decoder, encoder_out, lengths, most, shape=shape, proposer=proposer)


@combinations(kind=KINDS, seed=range(6))
def test_nbest_is_exact(seed, kind):
    rng = random.Random(f"{seed} {kind}")
    decoder, beam_size = shared_decoder(seed, rng.choice(HEADS)), rng.randint(1, 6)
    weights = random_weights(rng)
    encoder_out, lengths = random_encoder_out(
        seed, [rng.randint(5, 14) for _ in range(rng.randint(1, 4))]
    )
    proposer = make_proposer(kind, decoder, encoder_out, lengths, seed)
    shape = searches.beam_shape(rng, decoder, beam_size, proposer)
    given = decoder, seed, weights, beam_size, shape, encoder_out, lengths, LengthLimits(0.7)
    searches.assert_nbest_is_espnets(*given, proposer=proposer)


@pytest.mark.parametrize("hypothesis", [[], [4]], ids=["empty", "one token"])
def test_a_short_hypothesis(hypothesis):
    decoder, audio = shared_decoder(7, "none"), random_encoder_out(7, [1])
    proposer = CTCProposer(ScriptedCTC([hypothesis], audio[0], BLANK), VOCAB_SIZE, EOS, BLANK)
    decode_exactly(decoder, *audio, [20], shape=DraftShape(9, 2), proposer=proposer)


@combinations(kind=KINDS)
def test_a_batch_equals_single_utterances(kind):
    decoder = shared_decoder(5, "recurrent")
    audio = random_encoder_out(5, [9, 2, 5, 7])
    options = {"shape": DraftShape(8, 2), "proposer": make_proposer(kind, decoder, *audio, 5)}
    searches.assert_decoded_alike_alone(decoder, [40, 10, 25, 3], *audio, **options)


@combinations(weight=[0.0, 0.3, 1.0], heads=["block", "recurrent", "attending"])
def test_a_mixture_adds_probabilities(heads, weight):
    runtime = build_runtime(shared_decoder(2, heads))
    encoder_out, lengths = random_encoder_out(2, [5, 6])
    ctc = CTCProposer(make_scorers(2)[1].log_softmax, VOCAB_SIZE, EOS)
    mixed = MixedProposer(ctc, runtime.proposer(), weight)
    assert mixed.early is (ctc if weight else None), "a part of weight 0 drafts nothing"
    roots = [Prefix(1), Prefix(1)]
    for row, root in enumerate(roots):
        root.head_input = (encoder_out[:, 0], row)
    cross = runtime.start(encoder_out, lengths).cross_keys_values
    context = replace(ctc_context(roots, encoder_out, lengths), cross_keys_values=cross)
    parts = [proposer.begin(context) for proposer in (ctc, runtime.proposer(), mixed)]
    tokens = torch.tensor([4, 2])
    logits = (part.logits(part.advance(part.start(roots), tokens)) for part in parts)
    of_ctc, of_heads, of_both = (each.softmax(-1) for each in logits)
    torch.testing.assert_close(of_both, weight * of_ctc + (1 - weight) * of_heads)


@combinations(weight=[0.0, 0.5, 1.0])
def test_ctc_continues_drafts_after_the_last_head(weight):
    decoder = shared_decoder(3, "block", 2)
    encoder_out, lengths = random_encoder_out(3, [6])
    runtime = build_runtime(decoder)
    [text] = searches.greedy_texts(decoder, encoder_out, lengths, [30])
    ctc = CTCProposer(ScriptedCTC([text], encoder_out, BLANK), VOCAB_SIZE, EOS, BLANK)
    assert MixedProposer(runtime.proposer(), runtime.proposer()).max_steps == 2
    calls, parts = [], [ctc, runtime.proposer()]
    for proposer in (MixedProposer(*parts, weight), MixedProposer(*parts[::-1], 1 - weight)):
        assert proposer.max_steps is None
        [state] = decode(
            runtime, encoder_out, lengths, [30], shape=DraftShape(12, 2), proposer=proposer
        )
        assert state.tokens == text
        calls.append(state.statistics.decoder_calls)
    assert calls[0] == calls[1]


@refuses((1.5, None, "1.5; allowed: 0 to 1"), (0.3, [1, 2, EOS], "different vocabularies"))
def test_invalid_mixtures_are_refused(weight, vocabulary):
    vocabulary = vocabulary and torch.tensor(vocabulary)
    heads = build_runtime(shared_decoder(2, "recurrent")).proposer(vocabulary)
    MixedProposer(CTCProposer(make_scorers(2)[1].log_softmax, VOCAB_SIZE, EOS), heads, weight)


@combinations(seed=range(4))
def test_a_chain_equals_single_steps(seed):
    """After prefixes that are correct or have one edit, with sure CTC frames."""
    rng, texts = random.Random(seed), random_texts(seed)
    encoder_out, lengths = random_encoder_out(seed, [60] * len(texts))
    proposer = CTCProposer(ScriptedCTC(texts, encoder_out, BIG), BIG + 1, BIG - 1, BIG)
    roots = [Prefix(0) for _ in texts]
    context = ctc_context(roots, encoder_out, lengths)
    begun = proposer.begin(context)
    starts = [text[: rng.randint(0, len(text))] for text in texts]
    paths = [edited(start, rng.randint(0, 1), BIG - 1, rng) for start in starts]
    states = begun.start([*map(path_from, roots, paths)])
    ended = torch.zeros(len(texts), dtype=torch.bool)
    for chained in begun.chain(states, 40, -math.inf).t():
        tokens = begun.logits(states).argmax(dim=-1)
        assert (ended | (tokens == chained)).all()
        ended |= tokens == BIG - 1
        states = begun.advance(states, chained)
    assert ended.all()
    limited = CTCProposer(proposer.ctc, BIG + 1, BIG - 1, BIG, torch.arange(9))
    begun = limited.begin(context)
    assert begun.chain(states, 5, -math.inf) is None, "a limited vocabulary has no chain"
