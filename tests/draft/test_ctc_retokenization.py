"""CTC over units of its own drafts Whisper's tokens: spelt, aligned byte by byte."""

import random

import pytest
import torch
from made_vocabularies import open_bundled
from scripted import ScriptedCTC, ScriptedDecoder, ctc_context
from tiny import bounds, random_memory, tiny_decoder

from espnet_medusa.draft.ctc import CTCProposer
from espnet_medusa.draft.ctc_hypothesis import NONE, Retokenization, retokenized_hypothesis
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.acceptance import AcceptanceRule, exact
from espnet_medusa.search.ahead.lookahead import DraftShape
from espnet_medusa.search.constraints import build_constraints
from espnet_medusa.search.greedy import greedy_search
from espnet_medusa.search.options import SearchOptions
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.vocabulary.byte_pairs import BytePairUnits
from espnet_medusa.whisper.tokens import make_tokenizer

SIZE = 51865
WHOLE = DraftShape(60)
TEXTS = [
    " Mister Quilter is the apostle of the middle classes, and we're glad to welcome his gospel.",
    " Überraschung! 3,141.59 naïve cafés",
    " a",
    "",
]


@pytest.fixture(scope="module")
def vocabulary():
    return open_bundled("whisper_multilingual")


@pytest.fixture(scope="module", params=[256, 512, 2048])
def units(request):
    tokenizer = make_tokenizer(SIZE)
    return BytePairUnits(tokenizer.convert_ids_to_tokens(range(SIZE)), request.param)


@pytest.fixture(scope="module")
def runtime():
    return build_runtime(tiny_decoder(0, "none", vocab_size=SIZE))


def ctc_of(texts, memory, units, vocabulary, sure=0.9):
    """A branch that hears texts in units: label 0 is the blank."""
    heard = [units.spell(vocabulary.encode(text)) for text in texts]
    scripted = ScriptedCTC(heard, memory, len(units), sure)
    return lambda rows: scripted(rows).roll(1, dims=-1)


def hypothesis_of(text, units, vocabulary, sure=0.9):
    memory, _ = random_memory(0, [5])
    ctc = ctc_of([text], memory, units, vocabulary, sure)
    return retokenized_hypothesis(
        ctc(memory)[0], vocabulary.end, Retokenization(units.contents, vocabulary)
    )


def chain_from(found, place):
    tokens = []
    while place < len(found.symbols):
        tokens.append(int(found.tokens[place, 0]))
        place = int(found.following[place])
    return tokens


@pytest.mark.parametrize("text", TEXTS)
def test_the_hypothesis_is_what_the_tokenizer_writes(text, units, vocabulary):
    found = hypothesis_of(text, units, vocabulary)
    expected = make_tokenizer(SIZE).encode(text, add_special_tokens=False)
    assert bytes(found.symbols.tolist()).decode() == text
    assert chain_from(found, 0) == expected
    assert found.tokens[-1].tolist() == [vocabulary.end]


def test_from_every_place_the_rest_is_written(units, vocabulary):
    for text in TEXTS:
        found, written = hypothesis_of(text, units, vocabulary), text.encode()
        assert len(found.tokens) == len(found.following) == len(written) + 1
        for place in range(len(written)):
            assert vocabulary.write(chain_from(found, place)) == written[place:]


def test_what_is_no_text_is_spelt_too(vocabulary):
    tokenizer = make_tokenizer(SIZE)
    units = BytePairUnits(tokenizer.convert_ids_to_tokens(range(SIZE)), 256)
    labels = [units.contents.index(bytes([byte])) + 1 for byte in b" a\xe4\xbd b\xff"]
    log_probs = torch.full((2 * len(labels), 257), 1e-4)
    log_probs[torch.arange(0, len(log_probs), 2), torch.tensor(labels)] = 0.9
    log_probs[1::2, 0] = 0.9
    found = retokenized_hypothesis(
        log_probs.log(), vocabulary.end, Retokenization(units.contents, vocabulary)
    )
    assert vocabulary.write(chain_from(found, 0)) == b" a\xe4\xbd b\xff"


def test_a_vocabulary_that_cannot_write_a_word_drafts_what_it_can(vocabulary):
    class Poor:
        contents = (b" a", b"b")

        @staticmethod
        def encode(text):
            return [{97: 0, 98: 1}.get(byte) for byte in text.removeprefix(b" ")]

    places = Retokenization([], Poor()).places(b" axb")
    assert len(places) == 4
    assert places[0] == (0, 2) and places[3] == (1, 1)
    assert (NONE, 1) in places


def test_tokens_that_no_tokenizer_knows_write_nothing(vocabulary):
    retokenization = Retokenization([], vocabulary)
    assert retokenization.write(len(vocabulary)) == retokenization.write(vocabulary.end) == b""
    assert retokenization.write(vocabulary.encode(" the")[0]) == b" the"


def test_probabilities_are_those_of_the_units(units, vocabulary):
    found = hypothesis_of(TEXTS[0], units, vocabulary, sure=0.8)
    place = 0
    for token in chain_from(found, 0):
        count = len(units.spell([token]))
        assert float(found.probabilities[place, 0]) == pytest.approx(0.8**count, rel=1e-4)
        place = int(found.following[place])
    assert float(found.probabilities[-1, 0]) == pytest.approx(0.8)


def edit_distance(one, other):
    """The textbook's, cell by cell."""
    row = [*range(len(other) + 1)]
    for place, symbol in enumerate(one, 1):
        above, row = row, [place]
        for column, expected in enumerate(other, 1):
            row.append(
                min(above[column] + 1, row[-1] + 1, above[column - 1] + (symbol != expected))
            )
    return row


def test_rows_are_edit_distances_of_bytes(units, vocabulary):
    heard = TEXTS[:2]
    memory, lengths = random_memory(0, [5, 5])
    ctc = ctc_of(heard, memory, units, vocabulary)
    proposer = CTCProposer(
        ctc, SIZE, vocabulary.end, retokenization=Retokenization(units.contents, vocabulary)
    )
    roots = [Prefix(0), Prefix(0)]
    begun = proposer.begin(ctc_context(roots, memory, lengths))
    others = [" Mr. Quilter was an apostle", " Uberraschung ♪"]
    ends = []
    for root, other in zip(roots, others, strict=True):
        prefix = root
        for token in [
            *vocabulary.encode(other)[:2],
            vocabulary.start,
            *vocabulary.encode(other)[2:],
        ]:
            prefix = prefix.child(token)
        ends.append(prefix)
    states = begun.start(ends)
    for row, other, text in zip(states.rows.tolist(), others, heard, strict=True):
        size = len(text.encode())
        known = len(other.encode())
        found = [value + place - known for place, value in enumerate(row[: size + 1])]
        assert found == edit_distance(other.encode(), text.encode())


def calls_for(runtime, units, vocabulary, texts, heard, shape=WHOLE, limit=None):
    """Decoder calls for each text while CTC hears something else; the text stays."""
    tokens = [vocabulary.encode(text) for text in texts]
    decoder = ScriptedDecoder(runtime, dict(enumerate(tokens)), 2, SIZE, vocabulary.end)
    memory, lengths = random_memory(0, [5] * len(texts))
    proposer = CTCProposer(
        ctc_of(heard, memory, units, vocabulary), SIZE, vocabulary.end, vocabulary=limit,
        retokenization=Retokenization(units.contents, vocabulary),
    )  # fmt: skip
    constraints = build_constraints(SearchOptions(), SIZE, vocabulary.end)
    search = greedy_search(decoder, AcceptanceRule(exact), constraints, proposer, shape)
    prompt = torch.tensor([[row, 1] for row in range(len(texts))])
    search_states = search(memory, lengths, prompt, bounds([60] * len(texts)))
    assert [search_state.tokens for search_state in search_states] == tokens
    return [search_state.statistics.decoder_calls for search_state in search_states]


def test_what_ctc_has_right_takes_one_call(runtime, units, vocabulary):
    assert calls_for(runtime, units, vocabulary, TEXTS, TEXTS) == [1] * len(TEXTS)


def test_a_word_that_is_spelt_otherwise_takes_one_call_more(runtime, units, vocabulary):
    """Its tokens are others, and more of them: behind it drafting goes on."""
    heard = [TEXTS[0].replace("apostle", word) for word in ("opossle", "apstle", "appostole")]
    lengths = {len(vocabulary.encode(text)) for text in [TEXTS[0], *heard]}
    assert len(lengths) > 1
    assert calls_for(runtime, units, vocabulary, [TEXTS[0]] * 3, heard) == [2, 2, 2]


@pytest.mark.parametrize("shape", [WHOLE, DraftShape(20, 2)], ids=["chain", "tree"])
@pytest.mark.parametrize("limited", [False, True])
def test_whatever_ctc_hears_the_text_stays(runtime, units, vocabulary, shape, limited):
    rng = random.Random(len(units))
    letters = "abcdefghijklmnopqrstuvwxyz ',.ü"
    heard = []
    for text in TEXTS[:2] * 3:
        signs = [*text]
        for _ in range(rng.randint(0, 12)):
            place = rng.randrange(len(signs))
            signs[place : place + rng.randint(0, 2)] = rng.sample(letters, rng.randint(0, 2))
        heard.append("".join(signs))
    limit = None
    if limited:
        own = {token for text in TEXTS[:2] for token in vocabulary.encode(text)}
        limit = torch.tensor(sorted({vocabulary.end, *[*own][::2]}))
    calls = calls_for(runtime, units, vocabulary, TEXTS[:2] * 3, heard, shape, limit)
    tokens = [len(vocabulary.encode(text)) + 1 for text in TEXTS[:2] * 3]
    assert sum(calls) < sum(tokens) * (1 if limited else 0.8)
