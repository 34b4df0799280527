"""CTC drafts by alignment: what it says is aligned rightly, and searches stay exact."""

import math
import random
from dataclasses import replace

import pytest
import torch
from beam_oracle import UncachedScorer, assert_same_nbest, espnet_search, make_scorers, make_weights
from scripted import ScriptedCTC, ScriptedDecoder, ctc_context, edited
from tiny import EOS, VOCAB_SIZE, bounds, plain_greedy, random_memory, tiny_decoder

from espnet_medusa.draft.ctc import CTCProposer, advance_rows
from espnet_medusa.draft.mixed import MixedProposer
from espnet_medusa.errors import InputError
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.acceptance import AcceptanceRule, exact
from espnet_medusa.search.ahead.lookahead import DraftShape
from espnet_medusa.search.beam import beam_search
from espnet_medusa.search.constraints import build_constraints
from espnet_medusa.search.greedy import greedy_search
from espnet_medusa.search.options import LengthLimits, SearchOptions
from espnet_medusa.search.scores import Scorers
from espnet_medusa.tree.prefix import Prefix

PROMPT = [3, 1]
BLANK = VOCAB_SIZE  # so that CTC can say every token of the decoder
WHOLE = DraftShape(60)  # no text is longer
BIG = 60  # a vocabulary in which texts seldom repeat a token


# Alignment


def edit_distance(one, other):
    """The textbook's, cell by cell."""
    row = [*range(len(other) + 1)]
    for place, token in enumerate(one, 1):
        above, row = row, [place]
        for column, expected in enumerate(other, 1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (token != expected)))
    return row


@pytest.mark.parametrize("seed", range(20))
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
        assert row == edit_distance(prefix, text)


def place_weights(prefix, *texts):
    """How much each place of the first text counts for a prefix of its utterance."""
    proposer, roots = begun(texts)
    return proposer.hypotheses.weights(proposer.start([search_state(roots[0], prefix)]))[0]


def test_where_a_prefix_stands():
    def best_place(prefix, text=(1, 2, 3, 4, 5)):
        return int(place_weights(prefix, text).argmax())

    assert best_place([]) == 0
    assert best_place([1, 2]) == 2
    assert best_place([1, 9]) == 2, "CTC has another token: go on behind it"
    assert best_place([1, 9, 3]) == 3
    assert best_place([1, 3]) == 3, "CTC has put one in"
    assert best_place([1, 9, 2]) == 2, "CTC has left one out"
    assert best_place([9, 8]) == 2, "nothing fits: the diagonal"
    assert best_place([1, 2, 3, 4, 5, 7, 8]) == 5, "behind the end there is nothing"
    assert best_place([2] * 400, [2] * 400 + [3]) == 400, "sums stay exact"
    assert best_place([2] * 401, [2] * 400 + [3]) == 401


def test_weights_of_places():
    weights = place_weights([1, 9], [1, 2, 3, 4, 5], [6] * 9)
    assert float(weights.sum()) == pytest.approx(1)
    assert (weights[6:] == 0).all(), "behind the end of a shorter hypothesis"
    # A place as near as the best one counts less than that, one that is further off still less.
    best, near, far = weights[2], weights[1], weights[0]
    assert float(near / best) == pytest.approx(math.exp(-3), rel=0.01)
    assert float(far / near) == pytest.approx(math.exp(-3), rel=0.01)


# The proposer


def begun(texts, vocabulary=None, sure=0.9):
    """A proposer that hears these texts, and the roots of their utterances."""
    memory, lengths = random_memory(0, [4] * len(texts))
    ctc = ScriptedCTC(texts, memory, BLANK, sure)
    proposer = CTCProposer(ctc, VOCAB_SIZE, EOS, BLANK, vocabulary)
    roots = [Prefix(PROMPT[-1]) for _ in texts]
    return proposer.begin(ctc_context(roots, memory, lengths)), roots


def search_state(prefix, tokens):
    for token in tokens:
        prefix = prefix.child(token)
    return prefix


def next_tokens(proposer, states):
    return proposer.token_ids(proposer.logits(states).argmax(-1)).tolist()


def test_starting_behind_a_path_is_advancing_along_it():
    proposer, (one, other) = begun([[1, 2, 3, 4, 5], [7, 8]])
    prefixes = [
        search_state(one, [1, 2, 9]),
        search_state(other, [7]),
        one,
        search_state(one, [1]),
        search_state(one, [1, 2, 9]),
    ]
    states = proposer.start(prefixes)
    assert next_tokens(proposer, states) == [4, 8, 1, 2, 4]
    longer = proposer.advance(states, torch.tensor([4, 8, 9, 2, 9]))
    assert next_tokens(proposer, longer) == [5, EOS, 2, 3, 5]
    again = proposer.start(
        [prefix.child(t) for prefix, t in zip(prefixes, [4, 8, 9, 2, 9], strict=True)]
    )
    assert torch.equal(longer.rows, again.rows)
    assert torch.equal(longer.utterances, again.utterances)


def test_a_path_is_walked_once(monkeypatch):
    proposer, [root] = begun([[1, 2, 3, 4, 5]])
    tip, advanced = search_state(root, [1, 2, 9]), []
    advance = proposer.hypotheses.advance

    def watched(self, states, tokens):
        advanced.append(tokens.tolist())
        return advance(states, tokens)

    monkeypatch.setattr(type(proposer.hypotheses), "advance", watched)
    proposer.start([tip])
    assert advanced == [[1], [2], [9]]
    side = search_state(root, [1, 7])
    proposer.start([side, search_state(tip, [4])])
    assert advanced[3:] == [[7, 4]]
    proposer.keep([tip])
    assert {*proposer.known} == {*tip.ancestors()}, "what is dead is let go"
    proposer.start([side, tip])
    assert advanced[4:] == [[7]]


def test_alternatives_are_those_of_ctc_and_of_other_places():
    proposer, [root] = begun([[1, 2, 3, 4, 5]], sure=0.8)
    states = proposer.start([search_state(root, [1, 9])])
    probabilities = proposer.logits(states)[0].softmax(-1)
    best = probabilities.argsort(descending=True)[:2].tolist()
    assert best == [3, 2], "a substitution; or else CTC has left one out"
    assert 0.6 < probabilities[3] < 0.8


def test_only_tokens_of_the_vocabulary_are_drafted():
    whole, [root] = begun([[1, 2, 3]])
    vocabulary = [7, 3, EOS, 1]
    some, [other] = begun([[1, 2, 3]], torch.tensor(vocabulary))
    logits = some.logits(
        some.start([search_state(other, path) for path in ([], [1], [1, 2], [1, 2, 3])])
    )
    assert logits.shape == (4, 4) and logits.isfinite().all()
    tokens = some.token_ids(logits.argmax(-1)).tolist()
    assert [tokens[0], *tokens[2:]] == [1, 3, EOS]
    expected = whole.logits(whole.start([root]))[0, vocabulary].softmax(-1)
    torch.testing.assert_close(logits[0].softmax(-1), expected, rtol=0.0, atol=0.05)


# Searches


def greedy(decoder, proposer, memory, lengths, max_lengths, shape, prompt=None):
    constraints = build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    search = greedy_search(decoder, AcceptanceRule(exact), constraints, proposer, shape)
    prompt = torch.tensor([PROMPT] * len(lengths)) if prompt is None else prompt
    return search(memory, lengths, prompt, bounds(max_lengths))


def plain_texts(decoder, memory, lengths, max_lengths):
    return [
        plain_greedy(decoder, memory[row : row + 1, : lengths[row]], PROMPT, most)[0]
        for row, most in enumerate(max_lengths)
    ]


def calls_for(texts, heard, shape=WHOLE):
    """Decoder calls for each text while CTC hears something else."""
    count = len(texts)
    runtime = build_runtime(tiny_decoder(0, "none", vocab_size=BIG))
    decoder = ScriptedDecoder(runtime, dict(enumerate(texts)), len(PROMPT), BIG, BIG - 1)
    memory, lengths = random_memory(0, [5] * count)
    ctc = ScriptedCTC(heard, memory, BIG)
    proposer = CTCProposer(ctc, BIG, BIG - 1, BIG)
    constraints = build_constraints(SearchOptions(), BIG, BIG - 1)
    search = greedy_search(decoder, AcceptanceRule(exact), constraints, proposer, shape)
    prompt = torch.tensor([[row, 1] for row in range(count)])
    search_states = search(memory, lengths, prompt, bounds([60] * count))
    assert [search_state.tokens for search_state in search_states] == texts
    return [search_state.statistics.decoder_calls for search_state in search_states]


def random_texts(seed, count=6):
    rng = random.Random(seed)
    return [[rng.randrange(BIG - 1) for _ in range(rng.randint(1, 30))] for _ in range(count)]


def test_what_ctc_has_right_takes_one_call():
    texts = random_texts(0)
    assert calls_for(texts, texts) == [1] * len(texts)


@pytest.mark.parametrize("num_edits", [1, 2, 4])
@pytest.mark.parametrize("seed", range(5))
def test_the_search_goes_on_behind_what_ctc_has_wrong(seed, num_edits):
    rng, texts = random.Random(seed), random_texts(seed)
    heard = [edited(text, num_edits, BIG - 1, rng) for text in texts]
    assert max(calls_for(texts, heard)) <= 1 + 2 * num_edits


def test_one_call_more_for_a_token_put_in_or_another_two_for_one_left_out():
    text = [*range(2, 22)]
    substituted, inserted = [*text], [*text]
    substituted[9] = 30
    inserted.insert(9, 30)
    heard = [substituted, inserted, text[:9] + text[10:]]
    assert calls_for([text] * 3, heard) == [2, 2, 3]
    # A tree of two holds both continuations behind a mismatch.
    assert calls_for([text] * 3, heard, DraftShape(60, 2)) == [2, 2, 2]


def make_proposer(kind, decoder, runtime, memory, lengths, seed):
    """CTC with random weights, or one that hears roughly what greedy search writes."""
    rng = random.Random(seed)
    if kind.startswith("random"):
        _, ctc = make_scorers(seed)
        proposer = CTCProposer(ctc.log_softmax, VOCAB_SIZE, EOS)
    else:
        texts = plain_texts(decoder, memory, lengths, [30] * len(lengths))
        heard = [edited(text, rng.randint(0, 6), EOS, rng) for text in texts]
        sure = rng.choice([0.5, 0.9, 1.0])
        proposer = CTCProposer(ScriptedCTC(heard, memory, BLANK, sure), VOCAB_SIZE, EOS, BLANK)
    if kind.endswith("mixed"):
        return MixedProposer(proposer, runtime.proposer(), rng.choice([0.0, 0.3, 0.7, 1.0]))
    return proposer


KINDS = ["random", "edited", "random mixed", "edited mixed"]
HEADS = ["linear", "block", "recurrent", "attending", "llama latent"]


def random_shape(rng, width):
    if rng.random() < 0.2:
        return DraftShape(3, choices=tuple(rng.randint(1, 3) for _ in range(3)))
    return DraftShape(
        rng.choice([1, 3, 7, 40]), rng.choice([1, width, 2 * width]), rng.choice([None, 1, 6, 30])
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_greedy_text_is_exact(seed, kind):
    rng = random.Random(f"{seed} {kind}")
    decoder = tiny_decoder(seed, rng.choice(HEADS))
    memory, lengths = random_memory(seed, [rng.randint(1, 12) for _ in range(rng.randint(1, 5))])
    max_lengths = [rng.choice([1, 2, 7, 25, 50]) for _ in lengths]
    runtime = build_runtime(decoder)
    proposer = make_proposer(kind, decoder, runtime, memory, lengths, seed)
    shape = random_shape(rng, 2)
    search_states = greedy(runtime, proposer, memory, lengths, max_lengths, shape)
    assert [search_state.tokens for search_state in search_states] == plain_texts(
        decoder, memory, lengths, max_lengths
    )


def beam(runtime, proposer, seed, weights, beam_size, shape):
    constraints = build_constraints(SearchOptions(), VOCAB_SIZE, EOS)
    scorers, ctc = make_scorers(seed)
    return beam_search(
        runtime, Scorers(weights, scorers, ctc.log_softmax), beam_size, constraints, proposer, shape
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_nbest_is_exact(seed, kind):
    rng = random.Random(f"{seed} {kind}")
    decoder, beam_size = tiny_decoder(seed, rng.choice(HEADS)), rng.randint(1, 6)
    weights = make_weights(
        ctc=rng.choice([0.0, 0.3]), lm=rng.choice([0.0, 0.4]), length_bonus=rng.choice([0.0, 0.3])
    )
    memory, lengths = random_memory(seed, [rng.randint(7, 16) for _ in range(rng.randint(1, 4))])
    runtime = build_runtime(decoder)
    proposer = make_proposer(kind, decoder, runtime, memory, lengths, seed)
    shape = DraftShape(
        rng.choice([1, 3, 12]),
        rng.choice([1, beam_size, 2 * beam_size]),
        rng.choice([None, None, 1, 20]),
        left_out=frozenset(rng.choice([[], ["lm"]])),
    )
    search = beam(runtime, proposer, seed, weights, beam_size, shape)
    search_states = search(memory, lengths, torch.tensor([[EOS]] * len(lengths)), LengthLimits(0.7))
    oracle = espnet_search(UncachedScorer(decoder), seed, weights, beam_size)
    for row, search_state in enumerate(search_states):
        expected = oracle(memory[row, : lengths[row]], maxlenratio=0.7)
        assert_same_nbest(
            [([EOS, *ended.tokens], ended.score) for ended in search_state.ended],
            [(hypothesis.yseq.tolist(), float(hypothesis.score)) for hypothesis in expected],
        )


@pytest.mark.parametrize("heard", [[], [4]])
def test_ctc_that_hears_nothing_or_one_frame(heard):
    decoder = tiny_decoder(7, "none")
    memory, lengths = random_memory(7, [1])
    proposer = CTCProposer(ScriptedCTC([heard], memory, BLANK), VOCAB_SIZE, EOS, BLANK)
    one_frame = CTCProposer(make_scorers(7)[1].log_softmax, VOCAB_SIZE, EOS)
    for some in (proposer, one_frame):
        [search_state] = greedy(
            build_runtime(decoder), some, memory, lengths, [20], DraftShape(9, 2)
        )
        assert search_state.tokens == plain_texts(decoder, memory, lengths, [20])[0]


@pytest.mark.parametrize("kind", KINDS)
def test_batch_equals_singles(kind):
    decoder = tiny_decoder(5, "recurrent")
    memory, lengths = random_memory(5, [9, 2, 5, 7])
    max_lengths, runtime = [40, 10, 25, 3], build_runtime(decoder)
    proposer = make_proposer(kind, decoder, runtime, memory, lengths, 5)
    together = greedy(runtime, proposer, memory, lengths, max_lengths, DraftShape(8, 2))
    for row, search_state in enumerate(together):
        alone, size = memory[row : row + 1, : lengths[row]], lengths[row : row + 1]
        [single] = greedy(runtime, proposer, alone, size, max_lengths[row:][:1], DraftShape(8, 2))
        assert single.tokens == search_state.tokens
        assert single.statistics.decoder_calls == search_state.statistics.decoder_calls
        assert single.statistics.nodes == search_state.statistics.nodes


# Mixtures


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("heads", ["block", "recurrent"])
def test_a_mixture_of_all_or_nothing_is_either_alone(heads, search, weight):
    decoder = tiny_decoder(1, heads)
    memory, lengths = random_memory(1, [9, 12, 7])
    runtime, counts = build_runtime(decoder), []
    ctc = make_proposer("edited", decoder, runtime, memory, lengths, 1)
    mixed = MixedProposer(ctc, runtime.proposer(), weight)
    for proposer in (mixed, ctc if weight else runtime.proposer()):
        if search == "greedy":
            search_states = greedy(runtime, proposer, memory, lengths, [30] * 3, DraftShape(4, 3))
        else:
            found = beam(runtime, proposer, 1, make_weights(ctc=0.3), 4, DraftShape(4, 4))
            search_states = found(memory, lengths, torch.tensor([[EOS]] * 3))
        counts.append(
            [
                (
                    search_state.statistics.nodes,
                    search_state.statistics.accepted,
                    search_state.steps,
                )
                for search_state in search_states
            ]
        )
    assert counts[0] == counts[1]


@torch.no_grad()
@pytest.mark.parametrize("heads", ["recurrent", "attending"])
def test_a_mixture_adds_probabilities(heads):
    runtime = build_runtime(tiny_decoder(2, heads))
    memory, lengths = random_memory(2, [5, 6])
    ctc = CTCProposer(make_scorers(2)[1].log_softmax, VOCAB_SIZE, EOS)
    mixed = MixedProposer(ctc, runtime.proposer(), 0.3)
    roots = [Prefix(1), Prefix(1)]
    for row, root in enumerate(roots):
        root.head_input = (torch.randn(2, memory.size(-1)), row)
    context = replace(
        ctc_context(roots, memory, lengths),
        cross_keys_values=runtime.start(memory, lengths).cross_keys_values,
    )
    parts = [proposer.begin(context) for proposer in (ctc, runtime.proposer(), mixed)]
    tokens = torch.tensor([4, 2])
    first, second, both = (
        part.logits(part.advance(part.start(roots), tokens)).softmax(-1) for part in parts
    )
    torch.testing.assert_close(both, 0.3 * first + 0.7 * second)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_ctc_goes_on_where_heads_are_at_an_end(weight):
    decoder = tiny_decoder(3, "block", 2)
    memory, lengths = random_memory(3, [6])
    runtime = build_runtime(decoder)
    text = plain_texts(decoder, memory, lengths, [30])[0]
    ctc = CTCProposer(ScriptedCTC([text], memory, BLANK), VOCAB_SIZE, EOS, BLANK)
    mixed = MixedProposer(ctc, runtime.proposer(), weight)
    other = MixedProposer(runtime.proposer(), ctc, 1 - weight)
    assert mixed.max_steps is other.max_steps is None
    assert MixedProposer(runtime.proposer(), runtime.proposer()).max_steps == 2
    calls = []
    for proposer in (mixed, other):
        [search_state] = greedy(runtime, proposer, memory, lengths, [30], DraftShape(12, 2))
        assert search_state.tokens == text
        calls.append(search_state.statistics.decoder_calls)
    assert calls[0] == calls[1]


def test_what_cannot_be_mixed():
    runtime = build_runtime(tiny_decoder(2, "recurrent"))
    ctc = CTCProposer(make_scorers(2)[1].log_softmax, VOCAB_SIZE, EOS)
    with pytest.raises(InputError, match="1.5; allowed: 0 to 1"):
        MixedProposer(ctc, runtime.proposer(), 1.5)
    with pytest.raises(InputError, match="different vocabularies"):
        MixedProposer(ctc, runtime.proposer(torch.tensor([1, 2, EOS])))


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_is_what_steps_draft(seed):
    """Where CTC is sure: behind right beginnings, and behind those with an edit."""
    rng, texts = random.Random(seed), random_texts(seed)
    memory, lengths = random_memory(seed, [60] * len(texts))
    proposer = CTCProposer(ScriptedCTC(texts, memory, BIG), BIG + 1, BIG - 1, BIG)
    roots = [Prefix(0) for _ in texts]
    context = ctc_context(roots, memory, lengths)
    begun = proposer.begin(context)
    prefixes = []
    for root, text in zip(roots, texts, strict=True):
        known = edited(text[: rng.randint(0, len(text))], rng.randint(0, 1), BIG - 1, rng)
        prefix = root
        for token in known:
            prefix = prefix.child(token)
        prefixes.append(prefix)
    states = begun.start(prefixes)
    chains = begun.chain(states, 40)
    ended = torch.zeros(len(texts), dtype=torch.bool)
    for step in range(40):
        tokens = begun.logits(states).argmax(dim=-1)
        assert (ended | (tokens == chains[:, step])).all()
        ended |= tokens == BIG - 1
        states = begun.advance(states, chains[:, step])
    assert ended.all()
    few = CTCProposer(proposer.ctc, BIG + 1, BIG - 1, BIG, torch.arange(9))
    assert few.begin(context).chain(states, 5) is None, "it knows too few tokens"
