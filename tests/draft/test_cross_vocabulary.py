"""A draft model of another vocabulary: searches stay exact, and what it knows is not lost."""

import random
from functools import lru_cache

import pytest
import torch
from beam_oracle import UncachedScorer, assert_same_nbest, espnet_search, make_scorers, make_weights
from made_vocabularies import (
    LISTS,
    MODELS,
    make_list,
    make_sentences,
    open_bundled,
    train_sentencepiece,
)
from scripted import ScriptedDecoder
from tiny import EOS, VOCAB_SIZE, bounds, plain_greedy, random_memory, tiny_decoder
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from espnet_medusa.draft.ctc import CTCProposer
from espnet_medusa.draft.interpreter import UNKNOWN, OneToOne
from espnet_medusa.draft.mixed import MixedProposer
from espnet_medusa.draft.model import DraftModelProposer
from espnet_medusa.errors import InputError
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.search.acceptance import AcceptanceRule, exact
from espnet_medusa.search.ahead.lookahead import DraftShape
from espnet_medusa.search.beam import beam_search
from espnet_medusa.search.constraints import Constraints
from espnet_medusa.search.greedy import greedy_search
from espnet_medusa.search.options import LengthLimits
from espnet_medusa.search.scores import Scorers
from espnet_medusa.search.threshold_beam import threshold_beam_search
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftContext, DraftInput
from espnet_medusa.vocabulary.tokenizers import (
    BUNDLED,
    hugging_face_vocabulary,
    open_vocabulary,
    token_list_vocabulary,
)
from espnet_medusa.vocabulary.translation import PrefixIndex, Translation

END = "<|endoftext|>"
# Merges in order; tokens are signs, merges, the end symbol.
COARSE = [("b", "a"), ("Ġ", "ba"), ("k", "o"), ("Ġ", "ko")]
FINE = [("a", "k"), ("Ġ", "b"), ("a", "Ġ"), ("o", "k"), ("ak", "o"), ("Ġb", "ako")]
SIGNS = ["a", "b", "k", "o", "Ġ", "m"]


def byte_level(signs, merges, end=END):
    """Byte-level BPE with an end symbol behind all other tokens."""
    tokens = [*signs, *(one + other for one, other in merges), end]
    model = models.BPE({token: number for number, token in enumerate(tokens)}, merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return hugging_face_vocabulary(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token=end)
    )


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    """Every kind by name; those of VOCAB_SIZE tokens with the end symbol last: main, signs."""
    folder = tmp_path_factory.mktemp("vocabularies")
    found = {name: open_bundled(name) for name in BUNDLED}
    found |= {name: open_vocabulary(train_sentencepiece(folder, name)) for name in MODELS}
    found |= {kind: open_vocabulary(make_list(folder, kind)) for kind in LISTS}
    found["coarse"] = byte_level(SIGNS, COARSE)
    found["fine"] = byte_level(SIGNS, FINE)
    found["few"] = byte_level(["b", "a", "Ġ"], [])
    found["signs"] = token_list_vocabulary([*"abkolmü", "<space>", "é", "ß", "<sos/eos>"], "char")
    mixed = ["<blank>", *"ßéokb", "<unk>", *"aüml", "<space>", "<sos/eos>"]
    found["shuffled signs"] = token_list_vocabulary(mixed, "char")
    assert len(found["coarse"]) == len(found["signs"]) == VOCAB_SIZE
    assert found["coarse"].end == found["signs"].end == EOS
    return found


@pytest.fixture(scope="module")
def translations(vocabularies):
    """By the names of main and draft vocabulary."""
    return lru_cache(
        lambda main, draft: Translation.between(vocabularies[main], vocabularies[draft])
    )


def greedy(decoder, proposer, shape, end=EOS):
    return greedy_search(decoder, AcceptanceRule(exact), Constraints(end), proposer, shape)


def begun(proposer, count=1, prompt=(1,)):
    """A proposer begun for utterances of random memory, and their roots."""
    memory, lengths = random_memory(0, [4] * count)
    roots = [Prefix(0) for _ in range(count)]
    inputs = [DraftInput(row, [*prompt]) for row in memory]
    return proposer.begin(DraftContext(roots, memory.device, inputs)), roots


def scripted(texts, vocab_size, end):
    """Writes these texts, by the first of two prompt tokens."""
    runtime = build_runtime(
        tiny_decoder(0, "none", vocab_size=max(len(texts), 2), max_target_positions=256)
    )
    runtime = Clamped(runtime, len(texts))
    return Sure(runtime, dict(enumerate(texts)), 2, vocab_size, end)


class Sure(ScriptedDecoder):
    """Leaves next to nothing for all of many tokens together."""

    def logits(self, hidden):
        return 4 * super().logits(hidden)


class Clamped:
    """A decoder that does not care for tokens."""

    def __init__(self, decoder, size):
        self.decoder, self.size = decoder, size
        self.calls = 0

    def __getattr__(self, name):
        return getattr(self.decoder, name)

    def extend(self, state, tokens, parents):
        self.calls += 1
        return self.decoder.extend(state, [[0 for _ in row] for row in tokens], parents)


def needed(tokens, depth):
    """Calls where all drafts stand: each writes depth + 1 tokens, the last one the end, too."""
    return -(-(len(tokens) + 1) // (depth + 1))


def run_scripted(translation, texts, depth, width=1):
    """Both models write these texts; the calls and what the draft model was asked."""
    main, draft = translation.to_draft.source, translation.to_draft.target
    ours = [main.encode(begin(main, text)) for text in texts]
    theirs = [draft.encode(begin(draft, text)) for text in texts]
    assert None not in sum(ours + theirs, [])
    drafter = scripted(theirs, len(draft), draft.end)
    proposer = DraftModelProposer(drafter, main.end, translation)
    decoder = scripted(ours, len(main), main.end)
    memory, lengths = random_memory(0, [5] * len(texts))
    prompt = torch.tensor([[row, 1] for row in range(len(texts))])
    search = greedy(decoder, proposer, DraftShape(depth, width), main.end)
    search_states = search(memory, lengths, prompt, bounds([200] * len(texts)))
    assert [search_state.tokens for search_state in search_states] == ours
    return search_states, drafter.decoder.calls


def begin(vocabulary, text):
    return f" {text}" if vocabulary.leading_space in (None, True) else text


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


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_same_model_in_other_tokens_has_all_accepted(translations, pair, turned):
    pair = pair[::-1] if turned else pair
    translation = translations(*pair)
    sentences = make_sentences(3, seed=3)
    for depth in (1, 6):
        search_states, _ = run_scripted(translation, sentences, depth)
        for search_state in search_states:
            assert search_state.statistics.decoder_calls == needed(search_state.tokens, depth)


def test_coarse_and_fine_merges(translations):
    rng = random.Random(0)
    words = ["bako", "ko", "ba", "kobako", "mako", "okak", "bam"]
    sentences = [" ".join(rng.choices(words, k=9)) for _ in range(6)]
    for pair in (("coarse", "fine"), ("fine", "coarse")):
        for search_state in run_scripted(translations(*pair), sentences, 5)[0]:
            assert search_state.statistics.decoder_calls == needed(search_state.tokens, 5)


def test_text_without_spaces(translations):
    """Whose last word is never over."""
    texts = ["今天天气很好我们一起去公园散步吧然后回家吃饭", "私は昨日東京で友達と映画を見ました"]
    for pair in (("whisper_en", "whisper_large_v3"), ("whisper_large_v3", "whisper_en")):
        for search_state in run_scripted(translations(*pair), texts, 5)[0]:
            assert search_state.statistics.decoder_calls <= needed(search_state.tokens, 5) + 1


def test_drafts_of_the_same_text_cost_a_call_a_step(translations):
    text = make_sentences(1, seed=5)
    translation = translations("whisper_large_v3", "whisper_multilingual")
    [search_state], calls = run_scripted(translation, text, 4)
    assert calls == sum(search_state.statistics.drafted)
    # Others have to see that a word is over.
    translation = translations("whisper_en", "whisper_multilingual")
    [search_state], calls = run_scripted(translation, text, 4)
    assert calls <= sum(search_state.statistics.drafted) + 3 * search_state.statistics.decoder_calls


def hear(proposer, root, tokens):
    """Logits of the proposer behind some tokens of the main model."""
    states = proposer.start([root])
    for token in tokens:
        states = proposer.advance(states, torch.tensor([token]))
    return proposer.logits(states)[0]


class Table:
    """A draft model with a table: what it says behind each text, else the end.

    Args:
        table: Text to token to probability.
        vocabulary: Its own.
    """

    def __init__(self, table, vocabulary):
        self.table, self.vocabulary = table, vocabulary
        self.inner = scripted([[]], len(vocabulary), vocabulary.end)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def logits(self, hidden):
        rows = torch.full((len(hidden), len(self.vocabulary)), 1e-9)
        for row, path in zip(rows, hidden.tolist(), strict=True):
            tokens = [token for token in path if token >= 0][1:]
            known = self.table.get(self.vocabulary.write(tokens).decode(), {})
            for token, probability in known.items():
                row[self.vocabulary.ids[token.encode()] if token else EOS + 2] = probability
        return rows.log()


def test_a_word_that_goes_on_is_spelt_anew(translations, vocabularies):
    """Behind ` ba` the draft goes on with what agrees, ` bako`, not from its own ` b`, `a`."""
    coarse, fine = vocabularies["coarse"], vocabularies["fine"]
    table = {"": {" bako": 0.3, " b": 0.2, "m": 0.5}, " b": {"a": 0.9, "m": 0.1}, " ba": {"m": 1.0}}
    drafter = Table(table, fine)
    proposer = DraftModelProposer(drafter, EOS, translations("coarse", "fine"))
    proposer, [root] = begun(proposer, prompt=(0,))
    said = hear(proposer, root, [coarse.ids[b" ba"]])
    # Whether the word is over, is not asked of ` ba`, that ` bako` goes on with is known.
    assert int(said.argmax()) == coarse.ids[b"ko"]
    assert float(said.max().exp()) == pytest.approx(0.3, abs=0.01)
    assert said[coarse.ids[b" ba"]] == said[coarse.ids[b"m"]] == UNKNOWN
    share = hear(proposer, root, []).exp()
    assert float(share[coarse.ids[b"m"]]) == pytest.approx(0.5, abs=0.01)
    # Alone ` bako` is ` ba` there; ` b` is no token, its first one is the space.
    assert float(share[coarse.ids[b" ba"]]) == pytest.approx(0.3, abs=0.01)
    assert float(share[coarse.ids[b" "]]) == pytest.approx(0.2, abs=0.01)
    said = hear(proposer, root, [coarse.ids[b" ba"], coarse.ids[b"m"]])
    assert said.shape == (VOCAB_SIZE,) and said.isfinite().all()


def test_several_draft_tokens_for_one_of_the_main_model(translations, vocabularies):
    """` `, `k`, `o` are drafted as ` ko`, of the probability of their first."""
    coarse, fine = vocabularies["coarse"], vocabularies["fine"]
    table = {"": {" ": 0.7, " b": 0.3}, " ": {"k": 1.0}, " k": {"o": 1.0}, " ko": {" ": 1.0}}
    table[" ko "] = {"m": 1.0}
    proposer = DraftModelProposer(Table(table, fine), EOS, translations("coarse", "fine"))
    proposer, [root] = begun(proposer, prompt=(0,))
    said = hear(proposer, root, [])
    assert int(said.argmax()) == coarse.ids[b" ko"]
    assert float(said.max().exp()) == pytest.approx(0.7, abs=0.01)


@torch.no_grad()
def test_the_same_text_under_other_numbers(translations, vocabularies):
    """Logits are the draft model's own, each in its place, by an index."""
    v3, v2 = vocabularies["whisper_large_v3"], vocabularies["whisper_multilingual"]
    translation = translations("whisper_large_v3", "whisper_multilingual")
    module = tiny_decoder(1, "none", vocab_size=len(v2), num_blocks=1)
    start = v2.start
    proposer = DraftModelProposer(build_runtime(module), v3.end, translation)
    proposer, [root] = begun(proposer, prompt=(start,))
    assert isinstance(proposer._interpreter, OneToOne)
    text = [*v3.encode(" hello there"), v3.special["0.50"], v3.special["yue"]]
    said = hear(proposer, root, text)
    fed = [start, *v2.encode(" hello there"), v2.special["0.50"]]
    memory, lengths = random_memory(0, [4])
    own = module(memory, lengths, torch.tensor([fed]), torch.tensor([len(fed)]))[0][0, -1]
    assert said.shape == (51866,)
    torch.testing.assert_close(said[:50257], own[:50257], rtol=1e-4, atol=1e-4)
    names = {name: number for number, name in enumerate(v2.names) if name}
    for number, name in enumerate(v3.names):
        if name is not None:
            expected = own[names[name]] if name in names else torch.tensor(UNKNOWN)
            torch.testing.assert_close(said[number], expected, rtol=1e-4, atol=1e-4)
    assert said[v3.special["yue"]] == UNKNOWN


@torch.no_grad()
def test_the_same_signs_under_other_numbers(translations, vocabularies):
    """The main model itself, its tokens elsewhere, has all its drafts accepted."""
    main, draft = vocabularies["signs"], vocabularies["shuffled signs"]
    translation = translations("signs", "shuffled signs")
    assert translation.to_draft.same_text
    for seed in range(3):
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
        prompts = [main.special["sos/eos"], 3], [draft.end, translation.to_draft.exact[3]]
        inputs = [
            DraftInput(row[:size], [*map(int, prompts[1])])
            for row, size in zip(memory, lengths, strict=True)
        ]
        search = greedy(build_runtime(module), proposer, DraftShape(4))
        search_states = search(
            memory, lengths, torch.tensor([prompts[0]] * 2), bounds([30, 30]), inputs
        )
        for row, search_state in enumerate(search_states):
            alone = memory[row : row + 1, : lengths[row]]
            tokens, _, ended = plain_greedy(module, alone, prompts[0], 30)
            assert search_state.tokens == tokens
            assert search_state.statistics.decoder_calls == -(-(len(tokens) + ended) // 5)


@torch.no_grad()
def test_large_v3_with_a_draft_of_the_family_before(translations, vocabularies):
    """The draft's weights are the main model's, its special tokens one less; memory its own."""
    v3, v2 = vocabularies["whisper_large_v3"], vocabularies["whisper_multilingual"]
    main = tiny_decoder(2, "none", vocab_size=len(v3), num_blocks=1)
    draft = tiny_decoder(2, "none", vocab_size=len(v2), num_blocks=1)
    names = {name: number for number, name in enumerate(v3.names) if name}
    rows = [n if name is None else names[name] for n, name in enumerate(v2.names)]
    weights = {
        name: value[rows] if len(value) == len(v3) else value
        for name, value in main.state_dict().items()
    }
    draft.load_state_dict(weights)
    translation = translations("whisper_large_v3", "whisper_multilingual")
    proposer = DraftModelProposer(build_runtime(draft), v3.end, translation)
    memory, lengths = random_memory(2, [7, 4])
    prompts = [[v3.start, v3.special["de"], v3.special["transcribe"]]] * 2
    own = [[v2.start, v2.special["de"], v2.special["transcribe"]]] * 2
    inputs = [
        DraftInput(row[:size], prompt)
        for row, size, prompt in zip(memory, lengths, own, strict=True)
    ]
    search = greedy(build_runtime(main), proposer, DraftShape(4), v3.end)
    search_states = search(
        memory, lengths, torch.tensor(prompts), bounds([20, 20], [20, 20]), inputs
    )
    for row, search_state in enumerate(search_states):
        alone = memory[row : row + 1, : lengths[row]]
        expected = plain_greedy(main, alone, prompts[0], 20, v3.end, 20)[0]
        assert search_state.tokens == expected
        assert search_state.statistics.decoder_calls == -(-len(search_state.tokens) // 5)


DRAFTS = ["fine", "few", "signs", "shuffled signs", "small", "unigram", "char", "word", "coarse"]
MAINS = ["coarse", "signs"]


def random_case(seed, main, translation):
    """A random main model of VOCAB_SIZE tokens, a random draft model of the other vocabulary."""
    rng = random.Random(f"{seed} {main}")
    module = tiny_decoder(seed, "none")
    draft = tiny_decoder(seed + 9, "none", vocab_size=len(translation.to_draft.target))
    proposer = DraftModelProposer(build_runtime(draft), EOS, translation)
    memory, lengths = random_memory(seed, [rng.randint(7, 14) for _ in range(rng.randint(1, 4))])
    inputs = [DraftInput(row[:size], [1, 2]) for row, size in zip(memory, lengths, strict=True)]
    return rng, module, proposer, memory, lengths, inputs


@pytest.mark.parametrize("main", MAINS)
@pytest.mark.parametrize("draft", DRAFTS)
@torch.no_grad()
def test_greedy_text_is_exact(translations, main, draft):
    for seed in range(2):
        case = random_case(seed, main, translations(main, draft))
        rng, module, proposer, memory, lengths, inputs = case
        most = [rng.choice([1, 7, 25]) for _ in lengths]
        shape = DraftShape(rng.choice([1, 3, 6]), rng.choice([1, 2, 3]), rng.choice([None, 6]))
        search = greedy(build_runtime(module), proposer, shape)
        prompt = torch.tensor([[3, 1]] * len(lengths))
        search_states = search(memory, lengths, prompt, bounds(most), inputs)
        for row, search_state in enumerate(search_states):
            alone = memory[row : row + 1, : lengths[row]]
            assert search_state.tokens == plain_greedy(module, alone, [3, 1], most[row])[0]


@pytest.mark.parametrize("main", MAINS)
@pytest.mark.parametrize("draft", DRAFTS)
@torch.no_grad()
def test_nbest_is_exact(translations, main, draft):
    for seed in range(2):
        case = random_case(seed, main, translations(main, draft))
        rng, module, proposer, memory, lengths, inputs = case
        beam_size = rng.randint(1, 5)
        weights = make_weights(ctc=rng.choice([0.0, 0.3]), lm=rng.choice([0.0, 0.4]))
        shape = DraftShape(rng.choice([1, 4]), rng.choice([1, beam_size]), rng.choice([None, 12]))
        scorers, ctc = make_scorers(seed)
        search = beam_search(
            build_runtime(module), Scorers(weights, scorers, ctc.log_softmax), beam_size,
            Constraints(EOS), proposer, shape,
        )  # fmt: skip
        prompt = torch.tensor([[EOS]] * len(lengths))
        search_states = search(memory, lengths, prompt, LengthLimits(0.7), inputs)
        oracle = espnet_search(UncachedScorer(module), seed, weights, beam_size)
        for row, search_state in enumerate(search_states):
            expected = oracle(memory[row, : lengths[row]], maxlenratio=0.7)
            assert_same_nbest(
                [([EOS, *ended.tokens], ended.score) for ended in search_state.ended],
                [(hypothesis.yseq.tolist(), float(hypothesis.score)) for hypothesis in expected],
            )


@torch.no_grad()
def test_a_batch_equals_singles(translations):
    for draft in ("fine", "small"):
        _, module, proposer, *_ = random_case(5, "coarse", translations("coarse", draft))
        memory, lengths = random_memory(5, [9, 2, 5, 7])
        most, runtime = [20, 10, 15, 3], build_runtime(module)
        inputs = [DraftInput(row[:size], [1, 2]) for row, size in zip(memory, lengths, strict=True)]
        search = greedy(runtime, proposer, DraftShape(4, 2))
        together = search(memory, lengths, torch.tensor([[3, 1]] * 4), bounds(most), inputs)
        for row, search_state in enumerate(together):
            size = lengths[row : row + 1]
            [alone] = search(
                memory[row : row + 1, :size], size, torch.tensor([[3, 1]]),
                bounds(most[row : row + 1]), inputs[row : row + 1],
            )  # fmt: skip
            assert alone.tokens == search_state.tokens
            assert alone.statistics.decoder_calls == search_state.statistics.decoder_calls
            assert alone.statistics.draft_nodes == search_state.statistics.draft_nodes


@torch.no_grad()
def test_threshold_and_mixtures_take_it_as_any_other(translations):
    _, module, proposer, memory, lengths, inputs = random_case(
        1, "coarse", translations("coarse", "fine")
    )
    runtime, prompt = build_runtime(module), torch.tensor([[3, 1]] * len(lengths))
    search = threshold_beam_search(runtime, Constraints(EOS), proposer, 0.2, 3, 4)
    assert all(
        search_state.ended
        for search_state in search(memory, lengths, prompt, LengthLimits(-9), inputs)
    )
    ctc = CTCProposer(make_scorers(1)[1].log_softmax, VOCAB_SIZE, EOS)
    search = greedy(runtime, MixedProposer(ctc, proposer, 0.4), DraftShape(4, 2))
    search_states = search(memory, lengths, prompt, bounds([25] * len(lengths)), inputs)
    for row, search_state in enumerate(search_states):
        alone = memory[row : row + 1, : lengths[row]]
        assert search_state.tokens == plain_greedy(module, alone, [3, 1], 25)[0]


@torch.no_grad()
def test_a_draft_model_with_few_positions_or_few_signs(translations):
    """What it cannot write or has no room for, it has no word on."""
    for draft in ("fine", "few"):
        translation = translations("coarse", draft)
        module = tiny_decoder(6, "none")
        short = tiny_decoder(7, "none", vocab_size=len(translation.to_draft.target),
                             max_target_positions=9)  # fmt: skip
        proposer = DraftModelProposer(build_runtime(short), EOS, translation)
        memory, lengths = random_memory(6, [6, 4])
        prompt = torch.tensor([[3, 1]] * 2)
        search_states = greedy(build_runtime(module), proposer, DraftShape(5))(
            memory, lengths, prompt, bounds([40, 3], [40, 0])
        )
        expected = plain_greedy(module, memory[:1, :6], [3, 1], 40, min_length=40)[0]
        assert search_states[0].tokens == expected and len(expected) == 40


@torch.no_grad()
def test_what_is_settled_takes_no_memory(translations):
    """Of words that are over nobody asks again; the tree is the text and the last drafts."""
    vocabulary = translations("whisper_en", "whisper_multilingual").to_draft.source
    [sentence] = make_sentences(1, seed=7)
    text = vocabulary.encode(f" {sentence} {sentence} {sentence}")
    translation = translations("whisper_en", "whisper_multilingual")
    spelt = translation.to_draft.target.encode(f" {sentence} {sentence} {sentence}")
    drafter = scripted([spelt], len(translation.to_draft.target), translation.to_draft.target.end)
    proposer = DraftModelProposer(drafter, vocabulary.end, translation)
    proposer, [root] = begun(proposer, prompt=(0, 1))
    tip, sizes = root, []
    for token in text:
        tip = tip.child(token)
        states = proposer.advance(proposer.start([tip.parent]), torch.tensor([token]))
        assert int(proposer.logits(states)[0].argmax()) in (*text, vocabulary.end)
        proposer.keep([tip])
        node = proposer._places[tip].base
        known = [one for one in node.ancestors() if one in proposer._interpreter._predictions]
        sizes.append(proposer.tree.state.num_nodes)
        assert len(known) <= 1
    assert max(sizes) <= 2 + len(spelt) + 1


def test_tokens_by_how_they_begin(vocabularies):
    vocabulary = vocabularies["fallback"]
    order = PrefixIndex(vocabulary)
    for ahead in (b" b", b" ba", b"\xff", "ü".encode(), b" bako", b"zz"):
        longer = {
            n for text, n in vocabulary.ids.items() if text.startswith(ahead) and text != ahead
        }
        begins = {n for text, n in vocabulary.ids.items() if text and ahead.startswith(text)}
        assert set(order.extensions(ahead)) == longer
        assert set(order.compatible(ahead)) == longer | begins
        assert len(order.compatible(ahead)) == len(longer | begins)


def test_a_tokenizer_that_is_not_the_models_is_refused(vocabularies):
    main, draft = vocabularies["coarse"], vocabularies["fine"]
    with pytest.raises(InputError, match=f"3 output tokens, its tokenizer {len(main)}"):
        Translation.between(main, draft, size=3)
