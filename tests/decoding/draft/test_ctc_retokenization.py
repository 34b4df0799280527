"""CTC hypotheses; those over other units draft Whisper's tokens, aligned by bytes."""

import math
import random
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from cases import combinations, pairs
from made_vocabularies import open_bundled
from rapidfuzz.distance import Levenshtein
from scripted import ScriptedCTC, ctc_context, path_from, scripted_calls, scripted_encoder_out
from tiny import random_encoder_out

from espnet_medusa.data.vocabulary.byte_pairs import BytePairUnits
from espnet_medusa.decoding.draft import ctc_hypothesis
from espnet_medusa.decoding.draft.ctc import CTCProposer
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.networks.whisper.tokens import make_tokenizer

SIZE = 51865
CHAIN = DraftShape(60)
TEXTS = [
    " Mister Quilter is the apostle of the middle classes, and we're glad to welcome his gospel.",
    " Überraschung! 3,141.59 naïve cafés",
    " a",
    "",
]


@pytest.fixture(scope="module")
def vocabulary():
    return open_bundled("whisper_multilingual")


whisper_tokenizer = cache(make_tokenizer)


def byte_pair_units(count):
    return BytePairUnits(whisper_tokenizer(SIZE).convert_ids_to_tokens(range(SIZE)), count)


@pytest.fixture(scope="module", params=[256, 512, 2048])
def units(request):
    return byte_pair_units(request.param)


def ctc_of(texts, encoder_out, units, vocabulary):
    """Return a CTC branch over units whose hypotheses are ``texts``; label 0 is the blank."""
    hypotheses = [units.spell(vocabulary.encode(text)) for text in texts]
    scripted = ScriptedCTC(hypotheses, encoder_out, len(units))
    return lambda rows: scripted(rows).roll(1, dims=-1)


def hypothesis_of(labels, units, vocabulary, sure=0.9):
    """Return the hypothesis of a CTC branch whose best path has these units."""
    encoder_out, _ = random_encoder_out(0, [5])
    log_probs = ScriptedCTC([labels], encoder_out, len(units), sure)(encoder_out)[0].roll(
        1, dims=-1
    )
    retokenization = ctc_hypothesis.Retokenization(units.contents, vocabulary)
    return ctc_hypothesis.retokenized_hypothesis(log_probs, vocabulary.end, retokenization)


def places_from(hypothesis, place):
    """Return the places of the tokens that write the rest of the text from a place."""
    places = []
    while place < len(hypothesis.symbols):
        places.append(place)
        place = int(hypothesis.following[place])
    return places


def tokens_from(hypothesis, place):
    return hypothesis.tokens[places_from(hypothesis, place), 0].tolist()


@combinations(text=TEXTS)
def test_the_hypothesis_has_the_tokenizers_tokens(text, units, vocabulary):
    labels, written = units.spell(vocabulary.encode(text)), text.encode()
    hypothesis = hypothesis_of(labels, units, vocabulary)
    expected = whisper_tokenizer(SIZE).encode(text, add_special_tokens=False)
    assert bytes(hypothesis.symbols.tolist()) == written
    assert tokens_from(hypothesis, 0) == expected
    assert hypothesis.tokens[-1].tolist() == [vocabulary.end]
    assert len(hypothesis.tokens) == len(hypothesis.following) == len(written) + 1
    for place in range(len(written)):
        assert vocabulary.write(tokens_from(hypothesis, place)) == written[place:]


def test_bytes_that_are_no_text_are_retokenized(vocabulary):
    units = byte_pair_units(256)
    labels = [units.contents.index(bytes([byte])) for byte in b" a\xe4\xbd b\xff"]
    hypothesis = hypothesis_of(labels, units, vocabulary)
    assert vocabulary.write(tokens_from(hypothesis, 0)) == b" a\xe4\xbd b\xff"


def test_bytes_without_a_token_are_skipped():
    vocabulary = SimpleNamespace(
        contents=(b" a", b"b"),
        encode=lambda text: [{97: 0, 98: 1}.get(byte) for byte in text.removeprefix(b" ")],
    )
    places = ctc_hypothesis.Retokenization([], vocabulary).places(b" axb")
    assert len(places) == 4
    assert places[0] == (0, 2) and places[3] == (1, 1)
    assert (ctc_hypothesis.NONE, 1) in places


def test_special_and_unknown_tokens_write_no_bytes(vocabulary):
    retokenization = ctc_hypothesis.Retokenization([], vocabulary)
    assert retokenization.write(len(vocabulary)) == retokenization.write(vocabulary.end) == b""
    assert retokenization.write(vocabulary.encode(" the")[0]) == b" the"


def test_probabilities_are_products_over_units(units, vocabulary):
    labels = units.spell(vocabulary.encode(TEXTS[0]))
    hypothesis = hypothesis_of(labels, units, vocabulary, sure=0.8)
    for place in places_from(hypothesis, 0):
        count = len(units.spell([int(hypothesis.tokens[place, 0])]))
        assert float(hypothesis.probabilities[place, 0]) == pytest.approx(0.8**count, rel=1e-4)
    assert float(hypothesis.probabilities[-1, 0]) == pytest.approx(0.8)


def test_rows_are_edit_distances_of_bytes(units, vocabulary):
    encoder_out, lengths = random_encoder_out(0, [5, 5])
    retokenization = ctc_hypothesis.Retokenization(units.contents, vocabulary)
    ctc = ctc_of(TEXTS[:2], encoder_out, units, vocabulary)
    proposer = CTCProposer(ctc, SIZE, vocabulary.end, retokenization=retokenization)
    roots = [Prefix(0), Prefix(0)]
    proposer = proposer.begin(ctc_context(roots, encoder_out, lengths))
    prefixes = [" Mr. Quilter was an apostle", " Uberraschung ♪"]
    tips = []
    for root, prefix in zip(roots, prefixes, strict=True):
        tokens = vocabulary.encode(prefix)
        tips.append(path_from(root, [*tokens[:2], vocabulary.start, *tokens[2:]]))
    rows = proposer.start(tips).rows.tolist()
    for row, prefix, text in zip(rows, prefixes, TEXTS[:2], strict=True):
        prefix, text = prefix.encode(), text.encode()
        distances = [value + at - len(prefix) for at, value in enumerate(row[: len(text) + 1])]
        ends = range(len(text) + 1)
        assert distances == [Levenshtein.distance(prefix, text[:end]) for end in ends]


def calls_for(units, vocabulary, texts, hypotheses, shape=CHAIN, limit=None):
    ctc = ctc_of(hypotheses, scripted_encoder_out(len(texts))[0], units, vocabulary)
    proposer = CTCProposer(
        ctc, SIZE, vocabulary.end, vocabulary=limit,
        retokenization=ctc_hypothesis.Retokenization(units.contents, vocabulary),
    )  # fmt: skip
    tokens = [vocabulary.encode(text) for text in texts]
    return scripted_calls(tokens, proposer, shape, SIZE, vocabulary.end)


def test_a_correct_hypothesis_takes_one_call_and_a_misspelled_word_one_more(units, vocabulary):
    """Drafts continue after the word although it has other tokens, and more of them."""
    assert calls_for(units, vocabulary, TEXTS, TEXTS) == [1] * len(TEXTS)
    hypotheses = [TEXTS[0].replace("apostle", word) for word in ("opossle", "apstle", "appostole")]
    assert len({len(vocabulary.encode(text)) for text in [TEXTS[0], *hypotheses]}) > 1
    assert calls_for(units, vocabulary, [TEXTS[0]] * 3, hypotheses) == [2, 2, 2]


@pairs(
    units=[256, 512, 2048], shape=[CHAIN, DraftShape(20, 2)], limited=[False, True],
    indirect=["units"],
)  # fmt: skip
def test_text_is_exact_whatever_the_hypothesis(units, vocabulary, shape, limited):
    rng = random.Random(len(units))
    texts, hypotheses = TEXTS[:2] * 3, []
    for text in texts:
        for _ in range(rng.randint(0, 12)):
            place = rng.randrange(len(text))
            more = "".join(rng.sample("abcdefghijklmnopqrstuvwxyz ',.ü", rng.randint(0, 2)))
            text = text[:place] + more + text[place + rng.randint(0, 2) :]
        hypotheses.append(text)
    limit = None
    if limited:
        tokens = {token for text in TEXTS[:2] for token in vocabulary.encode(text)}
        limit = torch.tensor(sorted({vocabulary.end, *[*tokens][::2]}))
    calls = calls_for(units, vocabulary, texts, hypotheses, shape, limit)
    most = sum(len(vocabulary.encode(text)) + 1 for text in texts)
    assert sum(calls) < most * (1 if limited else 0.8)


def frames(*rows):
    return torch.tensor(rows).log()


def test_greedy_hypothesis_merges_frames_and_drops_blanks():
    probabilities = frames(
        [0.7, 0.1, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1], [0.1, 0.8, 0.0, 0.1],
        [0.6, 0.4, 0.0, 0.0], [0.1, 0.5, 0.4, 0.0], [0.1, 0.2, 0.1, 0.6],
        [0.0, 0.1, 0.9, 0.0], [0.8, 0.1, 0.1, 0.0], [0.6, 0.2, 0.1, 0.1],
    )  # fmt: skip
    hypothesis = ctc_hypothesis.greedy_hypothesis(probabilities, blank=0, eos=3)
    assert hypothesis.tokens[:, 0].tolist() == [1, 1, 2, 3], "a blank separates equal tokens"
    assert hypothesis.probabilities[:, 0].tolist() == pytest.approx([0.7, 0.5, 0.9, 0.7])
    assert hypothesis.tokens[1, 1] == 2 and hypothesis.probabilities[1, 1] == pytest.approx(0.4)
    assert hypothesis.tokens[3, 1:].tolist() == [-1, -1]
    assert (hypothesis.probabilities.sum(-1) <= 1).all()
    # Without tokens there is the end token only.
    hypothesis = ctc_hypothesis.greedy_hypothesis(frames([0.9, 0.1], [0.7, 0.3]), 0, 1)
    assert hypothesis.tokens[:, 0].tolist() == [1]
    assert hypothesis.probabilities[0, 0] == pytest.approx(0.8)


def test_entropies_of_random_frames_in_any_precision():
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(9, 40, generator=generator).mul(4).log_softmax(-1)
    log_probs[0, :], log_probs[0, 7], log_probs[1, :] = -math.inf, 0.0, -math.log(40)
    rows = ([p for p in row if p] for row in log_probs.double().exp().tolist())
    expected = [-sum(p * math.log(p) for p in row) for row in rows]
    assert ctc_hypothesis.frame_entropies(log_probs[:0]).shape == (0,)
    assert ctc_hypothesis.frame_entropies(log_probs).tolist() == pytest.approx(expected, rel=1e-5)
    rounded = ctc_hypothesis.frame_entropies(log_probs.bfloat16())
    assert rounded.dtype == torch.float32
    assert rounded.tolist() == pytest.approx(expected, rel=0.05)
