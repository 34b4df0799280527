"""Drafts of a given text, alone and before another drafter: exact searches, few calls."""

import random

import searches
import torch
from cases import cases, combinations
from refusals import refuses
from scripted import edited, path_from, scripted_decoder, scripted_encoder_out
from tiny import EOS, VOCAB_SIZE, bounds, random_encoder_out, shared_decoder

from espnet_medusa.decoding.draft.alignment import place_of_end
from espnet_medusa.decoding.draft.cascade import CascadeProposer
from espnet_medusa.decoding.draft.model import DraftModelProposer
from espnet_medusa.decoding.draft.text import TextProposer
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.constraints import Constraints
from espnet_medusa.decoding.search.drafters import DraftSources
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.greedy import greedy_search
from espnet_medusa.decoding.search.search_options import LengthLimits, SearchOptions, check_options
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import DraftContext, DraftInput

BIG = 60  # vocabulary size with which texts seldom repeat a token
HEADS = ["linear", "block", "recurrent", "attending", "llama latent"]
DRAFTERS = [None, "text", "text+heads", "text+ctc", "text+model"]


def inputs_of(encoder_out, lengths, texts):
    rows = zip(encoder_out, lengths, texts, strict=True)
    return [DraftInput(row[:size], searches.PROMPT, text=text) for row, size, text in rows]


def begin(*texts, times=range(0)):
    roots = [Prefix(1) for _ in texts]
    inputs = [DraftInput(torch.zeros(1, 1), [1], text=text) for text in texts]
    context = DraftContext(roots, torch.device("cpu"), inputs)
    return TextProposer(BIG, BIG - 1, None, times).begin(context), roots


def drafts_after(proposer, prefix, depth=3):
    states = proposer.start([prefix])
    chains = proposer.chain(states, depth, -1.0).tolist()
    if prefix.token not in proposer.times:
        best = proposer.logits(states).argmax(dim=-1).tolist()
        assert best == [chain[0] for chain in chains], "steps begin like chains"
    return chains


@cases(
    ([], [1, 2, 3], True),
    ([1], [2, 3, 4], True),
    ([9], [2, 3, 4], False),
    ([1, 9, 3], [4, 5, 59], True),
    ([1, 3], [4, 5, 59], True),
    ([1, 2, 3, 4, 5], [59, 59, 59], True),
    ([1, 2, 3, 4, 5, 6], [59, 59, 59], False),
)
def test_a_text_goes_on_where_the_last_token_matches(path, expected, goes_on):
    proposer, [root] = begin([1, 2, 3, 4, 5])
    prefix = path_from(root, path)
    assert drafts_after(proposer, prefix) == [expected]
    assert proposer.goes_on(proposer.start([prefix])).tolist() == [goes_on]


@cases(
    ([], [50, 1, 2]),
    ([52], [1, 2, 51]),  # another time
    ([50, 1, 2], [51, 52, 3]),
    ([50, 1, 2, 53], [53, 3, 4]),  # the next segment begins at the same time
    ([50, 1, 2, 53, 3, 4, 55], [59, 59, 59]),
    ([50, 1, 2, 53, 54], [3, 4, 55]),
    ([1, 2, 3], [4, 55, 59]),  # a prefix without times
    ([50, 1, 53, 53, 2, 54, 54, 54], [3, 4, 55]),  # more times than the text
)
def test_times_are_drafted_but_not_aligned(path, expected):
    proposer, [root] = begin([50, 1, 2, 51, 52, 3, 4, 55], times=range(50, 58))
    assert drafts_after(proposer, path_from(root, path)) == [expected]


def test_a_text_without_times_goes_on_after_times():
    proposer, roots = begin([1, 2, 3, 4], None, [], times=range(50, 58))
    assert [*map(proposer.drafts, roots)] == [True, False, True]
    assert drafts_after(proposer, path_from(roots[0], [51])) == [[1, 2, 3]]
    assert drafts_after(proposer, path_from(roots[0], [51, 1, 2, 54])) == [[54, 3, 4]]
    prefix = path_from(roots[0], [51, 1, 2, 54, 54])
    assert drafts_after(proposer, prefix) == [[3, 4, 59]]
    states = proposer.start([prefix, roots[1]])
    assert proposer.goes_on(states).tolist() == [True, False]


@cases(
    ([1, 2, 3], 3),
    ([1, 9, 3], 3),
    ([3, 4, 5], 5),  # begins later
    ([2, 3, 9, 5], 5),
    ([5, 6, 7, 5], None),  # not similar
    ([9], None),
)
def test_the_place_where_a_text_ends(text, expected):
    assert place_of_end([1, 2, 3, 4, 5], text) == expected


def texts_near(rng, texts):
    """Return a draft text of each kind: right, edited, empty, unrelated, none, with an end."""
    near = []
    for text in texts:
        kind = rng.choice(["right", "edited", "empty", "other", "none", "longer", "end"])
        place, other = rng.randint(0, len(text)), [rng.randrange(VOCAB_SIZE) for _ in range(9)]
        near.append({
            "right": text, "edited": edited(text, rng.randint(1, 6), EOS, rng), "empty": [],
            "other": other, "none": None, "longer": text + 20 * other,
            "end": [*text[:place], EOS, *text[place:]],
        }[kind])  # fmt: skip
    return near


def build(seed, drafter, decoder, **options):
    """Return the search for options with a drafter, and an encoder output that it decodes."""
    draft = DraftModelProposer(build_runtime(shared_decoder(seed + 1, "none")), EOS)
    _, ctc = searches.make_scorers(seed)
    model = (lambda: draft) if drafter == "text+model" else None
    options = SearchOptions(drafter=drafter, **options)
    sources = DraftSources(ctc.log_softmax, 0, model)
    return searches.build_search(build_runtime(decoder), options, 4, sources)


@combinations(drafter=DRAFTERS, seed=range(8))
def test_greedy_text_is_exact(seed, drafter):
    rng = random.Random(f"{seed} {drafter}")
    decoder = shared_decoder(seed, rng.choice(HEADS))
    lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 5))]
    audio = random_encoder_out(seed, lengths)
    most = [rng.choice([2, 7, 25, 50]) for _ in lengths]
    near = texts_near(rng, searches.greedy_texts(decoder, *audio, most))
    options = {
        "draft_width": rng.choice([None, None, 1, 3]),
        "draft_min_probability": rng.choice([None, 0.3]),
        "lookahead": rng.choice(["fixed", "fixed", "acceptance", "auto"]),
        "draft_budget": rng.choice([None, None, 4]),
    }
    search = build(seed, drafter, decoder, search="greedy", **options)
    prompts = torch.tensor([searches.PROMPT] * len(most))
    states = search(*audio, prompts, bounds(most), inputs_of(*audio, near))
    searches.assert_plain(decoder, *audio, states, most)


@combinations(drafter=DRAFTERS, patience=[None, 1.0], seed=range(3))
def test_nbest_is_exact(seed, patience, drafter):
    rng = random.Random(f"{seed} {drafter}")
    decoder, audio = shared_decoder(seed, rng.choice(HEADS)), random_encoder_out(seed, [9, 4, 12])
    limits = [LengthLimits(-20)] * 3
    prompts = torch.tensor([searches.PROMPT] * 3)
    build_with = {"search": "beam", "patience": patience}
    plain = build(seed, drafter, decoder, draft_depth=0, **build_with)(*audio, prompts, limits)
    near = texts_near(rng, [state.n_best[0].tokens[:-1] for state in plain])
    states = build(seed, drafter, decoder, **build_with)(
        *audio, prompts, limits, inputs_of(*audio, near)
    )
    for state, expected in zip(states, plain, strict=True):
        ours, others = ([(e.tokens, e.score) for e in s.n_best] for s in (state, expected))
        searches.assert_same_nbest(ours, others)


@combinations(drafter=DRAFTERS[:3])
def test_the_right_text_takes_one_call(drafter):
    decoder, audio = shared_decoder(4, "block"), random_encoder_out(4, [6, 9, 3])
    texts = searches.greedy_texts(decoder, *audio, [30] * 3)
    search = build(4, drafter, decoder, search="greedy")
    prompts, inputs = torch.tensor([searches.PROMPT] * 3), inputs_of(*audio, texts)
    calls = [s.statistics.decoder_calls for s in search(*audio, prompts, bounds([30] * 3), inputs)]
    assert calls == [1, 1, 1]


@combinations(drafter=["text", "text+heads"], seed=range(2))
def test_a_batch_equals_single_utterances(seed, drafter):
    rng = random.Random(seed)
    decoder, audio = shared_decoder(seed, "recurrent"), random_encoder_out(seed, [9, 2, 5, 7])
    most = [40, 10, 25, 3]
    texts = searches.greedy_texts(decoder, *audio, most)
    near = [None, edited(texts[1], 2, EOS, rng), texts[2], [1, 2, 3]]
    search, prompt = build(seed, drafter, decoder, search="greedy"), torch.tensor(searches.PROMPT)

    def some(rows, *part):
        inputs = inputs_of(*part, [near[row] for row in rows])
        return search(*part, prompt.expand(len(rows), -1), bounds([most[r] for r in rows]), inputs)

    searches.assert_same_alone(some, *audio)


@combinations(drafter=[None, "text", "text+heads"])
def test_without_a_text_nothing_changes(drafter):
    decoder, audio = shared_decoder(5, "linear"), random_encoder_out(5, [6, 9])
    without = {"draft_depth": 0} if drafter == "text" else {"drafter": "heads"}
    prompts = torch.tensor([searches.PROMPT] * 2)
    counts = []
    for options in ({"drafter": drafter}, {"drafter": None} | without):
        search = build(5, options.pop("drafter"), decoder, search="greedy", **options)
        for texts in (None, [None, None]):
            states = search(*audio, prompts, bounds([25, 25]), draft_texts=texts)
            counts.append([vars(state.statistics)[n] for state in states for n in searches.COUNTS])
    assert counts == counts[:1] * 4


class KnownTexts(TextProposer):
    """Drafts texts of its own, whatever the draft inputs have."""

    def __init__(self, texts):
        super().__init__(BIG, BIG - 1)
        self.own = texts

    def begin(self, context):
        inputs = [DraftInput(torch.zeros(1, 1), [1], text=text) for text in self.own]
        return super().begin(DraftContext(context.roots, context.device, inputs))


@cases(
    ("start", "right", 2),  # the second drafter goes on after the end of the text
    ("substituted", "right", 2),
    (None, "right", 2),  # nothing drafts before the first call, as with heads
    ("substituted", "other", 3),  # one call after the mismatch, then the text goes on
    ("start", "other", 12),
)
def test_the_next_drafter_goes_on_where_the_text_is_left(first, second, calls):
    text, other = [*range(2, 22)], [50]
    kinds = {
        "right": text, "other": other, "start": text[:9], None: None,
        "substituted": [*text[:9], 40, *text[10:]],
    }  # fmt: skip
    cascade = CascadeProposer(TextProposer(BIG, BIG - 1), KnownTexts([kinds[second]]), 40)
    cascade.needs_head_input = True
    decoder, rule = scripted_decoder([text], BIG, BIG - 1), searches.EXACT
    search = greedy_search(decoder, rule, Constraints(BIG - 1), cascade, DraftShape(40))
    audio = scripted_encoder_out(1)
    inputs = inputs_of(*audio, [kinds[first]])
    [state] = search(*audio, torch.tensor([[0, 1]]), bounds([200]), inputs)
    assert state.tokens == text and state.statistics.decoder_calls == calls


@refuses(
    ("text+heads", {}, "this model has no heads"),
    ("text+model", {}, "needs draft_model"),
    ("text", {"medusa_choices": [1, 2]}, "medusa_choices: .*with drafter: text"),
    ("text", {"acceptance": "threshold"}, "acceptance: threshold; allowed with drafter: text"),
)
def test_unusable_options_are_refused(drafter, options):
    options = SearchOptions(search="greedy", drafter=drafter, **options)
    check_options(options, 1)
    searches.build_search(build_runtime(shared_decoder(0, "none")), options)
