"""Searches with a draft model of another vocabulary: exact, with every possible draft accepted."""

import random

import pytest
import torch
from beam_oracle import UncachedScorer, espnet_search, make_scorers, make_weights
from made_vocabularies import make_sentences
from scripted import draft_inputs, scripted_decoder, scripted_search
from searches import EXACT, PROMPT, assert_plain, compare, decode, our_search
from tiny import EOS, VOCAB_SIZE, bounds, plain_greedy, random_memory, tiny_decoder

from espnet_medusa.draft.ctc import CTCProposer
from espnet_medusa.draft.mixed import MixedProposer
from espnet_medusa.draft.model import DraftModelProposer
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.ahead.lookahead import DraftShape
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.greedy import greedy_search
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.threshold_beam import threshold_beam_search


def best_calls(tokens, depth):
    """Return the number of calls if all drafts are accepted: each gives depth + 1 tokens."""
    return -(-(len(tokens) + 1) // (depth + 1))  # the end token included


def search_with_same_texts(translation, texts, depth):
    """Decode texts that both models predict; return the states and the draft model's calls."""
    vocabularies = translation.to_draft.source, translation.to_draft.target
    tokens = [
        [
            vocabulary.encode(f" {text}" if vocabulary.leading_space in (None, True) else text)
            for text in texts
        ]
        for vocabulary in vocabularies
    ]
    assert None not in sum(tokens[0] + tokens[1], [])
    main, draft = vocabularies
    drafter = scripted_decoder(tokens[1], len(draft), draft.end)
    proposer = DraftModelProposer(drafter, main.end, translation)
    states = scripted_search(tokens[0], proposer, DraftShape(depth), len(main), main.end)
    return states, drafter.calls


PAIRS = [
    ("whisper_en", "whisper_multilingual"),
    ("whisper_large_v3", "whisper_en"),
    ("whisper_large_v3", "whisper_multilingual"),
    ("small", "large"),
    ("whisper_multilingual", "fallback"),
    ("unigram", "whisper_en"),
    ("char", "large"),
    ("word", "small"),
    ("word", "char"),
    ("bpe", "char"),
]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
def test_all_drafts_of_a_model_that_predicts_the_same_text_are_accepted(
    translations, pair, reverse
):
    translation = translations(*(pair[::-1] if reverse else pair))
    sentences = make_sentences(3, seed=3)
    for depth in (1, 6):
        for state in search_with_same_texts(translation, sentences, depth)[0]:
            assert state.statistics.decoder_calls == best_calls(state.tokens, depth)


@pytest.mark.parametrize("pair", [("coarse", "fine"), ("fine", "coarse")])
def test_coarse_and_fine_merges(translations, pair):
    rng = random.Random(0)
    words = ["bako", "ko", "ba", "kobako", "mako", "okak", "bam"]
    sentences = [" ".join(rng.choices(words, k=9)) for _ in range(6)]
    for state in search_with_same_texts(translations(*pair), sentences, 5)[0]:
        assert state.statistics.decoder_calls == best_calls(state.tokens, 5)


@pytest.mark.parametrize(
    "pair", [("whisper_en", "whisper_large_v3"), ("whisper_large_v3", "whisper_en")]
)
def test_text_without_spaces(translations, pair):
    """No space marks the end of the last word."""
    texts = ["今天天气很好我们一起去公园散步吧然后回家吃饭", "私は昨日東京で友達と映画を見ました"]
    for state in search_with_same_texts(translations(*pair), texts, 5)[0]:
        assert state.statistics.decoder_calls <= best_calls(state.tokens, 5) + 1


@pytest.mark.parametrize(
    ("main", "calls_for_word_ends"), [("whisper_large_v3", 0), ("whisper_en", 3)]
)
def test_draft_model_calls(translations, main, calls_for_word_ends):
    """A draft token costs one call; other tokens need further calls to detect word ends."""
    translation = translations(main, "whisper_multilingual")
    [state], calls = search_with_same_texts(translation, make_sentences(1, seed=5), 4)
    counts = state.statistics
    least = sum(counts.drafted)
    if not calls_for_word_ends:
        assert calls == least
    assert calls <= least + calls_for_word_ends * counts.decoder_calls


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
def test_shuffled_token_ids(translations, vocabularies, seed):
    """A draft model equal to the main model except for its token ids has all drafts accepted."""
    main, draft = vocabularies["characters"], vocabularies["shuffled characters"]
    translation = translations("characters", "shuffled characters")
    assert translation.to_draft.same_text
    module = tiny_decoder(seed, "none")
    twin = tiny_decoder(seed, "none", vocab_size=len(draft))
    weights = twin.state_dict()
    rows = torch.tensor([main.ids[text] for text in draft.contents if text] + [EOS])
    places = [place for place, text in enumerate(draft.contents) if text] + [draft.end]
    for name, value in module.state_dict().items():
        if len(value) == VOCAB_SIZE:
            weights[name][places] = value[rows]
        else:
            weights[name] = value
    twin.load_state_dict(weights)
    proposer = DraftModelProposer(build_runtime(twin), EOS, translation)
    memory, lengths = random_memory(seed, [6, 9])
    prompt = [main.special["sos/eos"], 3]
    inputs = draft_inputs(memory, lengths, [draft.end, int(translation.to_draft.exact[3])])
    states = decode(
        module, memory, lengths, [30, 30],
        shape=DraftShape(4), proposer=proposer, inputs=inputs, prompt=prompt,
    )  # fmt: skip
    assert_plain(module, memory, lengths, states, [30, 30], prompt=prompt)
    for state in states:
        assert state.statistics.decoder_calls == -(-(len(state.tokens) + state.ended) // 5)


@torch.no_grad()
def test_large_v3_with_a_draft_model_of_the_earlier_whispers(vocabularies, translations):
    """The models have equal weights, but large-v3 has one more special token."""
    v3, v2 = vocabularies["whisper_large_v3"], vocabularies["whisper_multilingual"]
    main = tiny_decoder(2, "none", vocab_size=len(v3), num_blocks=1)
    draft = tiny_decoder(2, "none", vocab_size=len(v2), num_blocks=1)
    ids = {name: number for number, name in enumerate(v3.names) if name}
    rows = [number if name is None else ids[name] for number, name in enumerate(v2.names)]
    weights = {
        name: value[rows] if len(value) == len(v3) else value
        for name, value in main.state_dict().items()
    }
    draft.load_state_dict(weights)
    translation = translations("whisper_large_v3", "whisper_multilingual")
    proposer = DraftModelProposer(build_runtime(draft), v3.end, translation)
    memory, lengths = random_memory(2, [7, 4])
    prompt, draft_prompt = (
        [vocabulary.start, vocabulary.special["de"], vocabulary.special["transcribe"]]
        for vocabulary in (v3, v2)
    )
    constraints, shape = Constraints(v3.end), DraftShape(4)
    search = greedy_search(build_runtime(main), EXACT, constraints, proposer, shape)
    inputs = draft_inputs(memory, lengths, draft_prompt)
    limits = bounds([20, 20], [20, 20])
    for row, state in enumerate(
        search(memory, lengths, torch.tensor([prompt] * 2), limits, inputs)
    ):
        alone = memory[row : row + 1, : lengths[row]]
        assert state.tokens == plain_greedy(main, alone, prompt, 20, v3.end, 20)[0]
        assert state.statistics.decoder_calls == -(-len(state.tokens) // 5)


DRAFTS = ["fine", "few", "characters", "shuffled characters", "coarse"]
DRAFTS += ["small", "unigram", "char", "word"]
MAINS = ["coarse", "characters"]


def random_case(seed, main, translation):
    """Return a random main model with VOCAB_SIZE tokens, its drafter and their input."""
    rng = random.Random(f"{seed} {main}")
    module = tiny_decoder(seed, "none")
    draft = tiny_decoder(seed + 9, "none", vocab_size=len(translation.to_draft.target))
    proposer = DraftModelProposer(build_runtime(draft), EOS, translation)
    memory, lengths = random_memory(seed, [rng.randint(7, 14) for _ in range(rng.randint(1, 4))])
    return rng, module, proposer, memory, lengths, draft_inputs(memory, lengths, [1, 2])


@pytest.mark.parametrize("main", MAINS)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("seed", range(2))
@torch.no_grad()
def test_greedy_text_is_exact(translations, main, draft, seed):
    case = random_case(seed, main, translations(main, draft))
    rng, module, proposer, memory, lengths, inputs = case
    most = [rng.choice([1, 7, 25]) for _ in lengths]
    shape = DraftShape(rng.choice([1, 3, 6]), rng.choice([1, 2, 3]), rng.choice([None, 6]))
    states = decode(module, memory, lengths, most, shape=shape, proposer=proposer, inputs=inputs)
    assert_plain(module, memory, lengths, states, most)


@pytest.mark.parametrize("main", MAINS)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("seed", range(2))
@torch.no_grad()
def test_nbest_is_exact(translations, main, draft, seed):
    case = random_case(seed, main, translations(main, draft))
    rng, module, proposer, memory, lengths, inputs = case
    beam_size = rng.randint(1, 5)
    weights = make_weights(ctc=rng.choice([0.0, 0.3]), lm=rng.choice([0.0, 0.4]))
    shape = DraftShape(rng.choice([1, 4]), rng.choice([1, beam_size]), rng.choice([None, 12]))
    search = our_search(module, seed, weights, beam_size, shape, proposer=proposer)
    oracle = espnet_search(UncachedScorer(module), seed, weights, beam_size)
    compare(search, memory, lengths, oracle, LengthLimits(0.7), inputs=inputs)


@torch.no_grad()
@pytest.mark.parametrize("draft", ["fine", "small"])
def test_a_batch_equals_single_utterances(translations, draft):
    _, module, proposer, *_ = random_case(5, "coarse", translations("coarse", draft))
    memory, lengths = random_memory(5, [9, 2, 5, 7])
    most, runtime = [20, 10, 15, 3], build_runtime(module)
    inputs = draft_inputs(memory, lengths, [1, 2])

    def states_of(rows):
        return decode(
            runtime, memory[rows, : lengths[rows].max()], lengths[rows], most[rows],
            shape=DraftShape(4, 2), proposer=proposer, inputs=inputs[rows],
        )  # fmt: skip

    for row, state in enumerate(states_of(slice(None))):
        [alone] = states_of(slice(row, row + 1))
        assert alone.tokens == state.tokens
        assert alone.statistics.decoder_calls == state.statistics.decoder_calls
        assert alone.statistics.draft_nodes == state.statistics.draft_nodes


@torch.no_grad()
def test_threshold_beam_and_mixture_with_ctc(translations):
    case = random_case(1, "coarse", translations("coarse", "fine"))
    _, module, proposer, memory, lengths, inputs = case
    runtime, prompts = build_runtime(module), torch.tensor([PROMPT] * len(lengths))
    search = threshold_beam_search(runtime, Constraints(EOS), proposer, 0.2, 3, 4)
    states = search(memory, lengths, prompts, LengthLimits(-9), inputs)
    assert all(state.ended for state in states)
    ctc = CTCProposer(make_scorers(1)[1].log_softmax, VOCAB_SIZE, EOS)
    mixed, most = MixedProposer(ctc, proposer, 0.4), [25] * len(lengths)
    shape = DraftShape(4, 2)
    states = decode(runtime, memory, lengths, most, shape=shape, proposer=mixed, inputs=inputs)
    assert_plain(module, memory, lengths, states, most)


@torch.no_grad()
@pytest.mark.parametrize("draft", ["fine", "few"])
def test_a_draft_model_with_few_positions_or_tokens(translations, draft):
    """The search continues without drafts of what the draft model cannot write."""
    translation = translations("coarse", draft)
    size = len(translation.to_draft.target)
    module = tiny_decoder(6, "none")
    short = tiny_decoder(7, "none", vocab_size=size, max_target_positions=9)
    proposer = DraftModelProposer(build_runtime(short), EOS, translation)
    memory, lengths = random_memory(6, [6, 4])
    options = {"min_lengths": [40, 0], "shape": DraftShape(5), "proposer": proposer}
    states = decode(module, memory, lengths, [40, 3], **options)
    assert_plain(module, memory, lengths, states, [40, 3], [40, 0])
    assert len(states[0].tokens) == 40
