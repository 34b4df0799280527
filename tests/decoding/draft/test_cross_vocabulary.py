"""Draft models of another vocabulary: exact searches, accepted drafts, and retokenized logits."""

import random

import pytest
import torch
from beam_oracle import make_weights
from cases import cases, combinations, pairs
from made_vocabularies import make_sentences
from refusals import assert_refused
from scripted import draft_inputs, path_from, scripted_decoder, scripted_search
from searches import assert_decoded_alike_alone, assert_nbest_is_espnets, decode_exactly
from tiny import EOS, VOCAB_SIZE, next_logits, random_encoder_out, shared_decoder, tiny_decoder

from espnet_medusa.data.vocabulary.translation import PrefixIndex, Translation
from espnet_medusa.decoding.draft.model import DraftModelProposer
from espnet_medusa.decoding.draft.prefix_map import UNKNOWN, OneToOne
from espnet_medusa.decoding.runtime.build import build_runtime
from espnet_medusa.decoding.search.drafting.lookahead import DraftShape
from espnet_medusa.decoding.search.search_options import LengthLimits
from espnet_medusa.decoding.tree.prefix import Prefix
from espnet_medusa.decoding.tree.proposer import DraftContext


def search_with_same_texts(translation, texts, depth):
    """Decode texts that both models predict; return the states and the draft model's calls."""
    main, draft = translation.to_draft.source, translation.to_draft.target
    tokens, draft_tokens = [], []
    for vocabulary, found in ((main, tokens), (draft, draft_tokens)):
        space = " " if vocabulary.leading_space in (None, True) else ""
        found += [vocabulary.encode(f"{space}{text}") for text in texts]
    assert None not in sum(tokens + draft_tokens, [])
    drafter = scripted_decoder(draft_tokens, len(draft), draft.end)
    proposer = DraftModelProposer(drafter, main.end, translation)
    states = scripted_search(tokens, proposer, DraftShape(depth), len(main), main.end)
    return states, drafter.calls


PAIRS = [
    ("whisper_en", "whisper_multilingual"), ("whisper_large_v3", "whisper_en"),
    ("whisper_large_v3", "whisper_multilingual"), ("small", "large"),
    ("whisper_multilingual", "fallback"), ("unigram", "whisper_en"), ("char", "large"),
    ("word", "small"), ("word", "char"), ("bpe", "char"),
]  # fmt: skip
WORDS = random.Random(0).choices(["bako", "ko", "ba", "kobako", "mako", "okak", "bam"], k=54)
CASES = [(pair, make_sentences(3, seed=3), 0) for pair in PAIRS]
CASES += [(("coarse", "fine"), [" ".join(WORDS[at : at + 9]) for at in range(0, 54, 9)], 0)]
# No space marks the end of the last word.
UNSPACED = ["今天天气很好我们一起去公园散步吧然后回家吃饭", "私は昨日東京で友達と映画を見ました"]
CASES += [(("whisper_en", "whisper_large_v3"), UNSPACED, 1)]


@pairs(case=CASES, reverse=[False, True], depth=[1, 5])
def test_all_drafts_of_a_model_that_predicts_the_same_text_are_accepted(
    translations, case, reverse, depth
):
    pair, texts, more_calls = case
    translation = translations(*(pair[::-1] if reverse else pair))
    for state in search_with_same_texts(translation, texts, depth)[0]:
        # Each call gives depth + 1 tokens; the last token is the end token.
        least = -(-(len(state.tokens) + 1) // (depth + 1))
        assert least <= state.statistics.decoder_calls <= least + more_calls


@cases(("whisper_large_v3", 0), ("whisper_en", 3))
def test_draft_model_calls(main, calls_for_word_ends, translations):
    """A draft token costs one call; other tokens need further calls to detect word ends."""
    translation = translations(main, "whisper_multilingual")
    [state], calls = search_with_same_texts(translation, make_sentences(1, seed=5), 4)
    most = sum(state.statistics.drafted) + calls_for_word_ends * state.statistics.decoder_calls
    assert calls <= most and (calls_for_word_ends or calls == most)


@combinations(seed=range(3))
def test_shuffled_token_ids(translations, seed):
    """A draft model equal to the main model except for its token ids has all drafts accepted."""
    translation = translations("characters", "shuffled characters")
    main, draft = translation.to_draft.source, translation.to_draft.target
    assert translation.to_draft.same_text
    module = shared_decoder(seed, "none")
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
    encoder_out, lengths = random_encoder_out(seed, [6, 9])
    prompt = [main.special["sos/eos"], 3]
    inputs = draft_inputs(encoder_out, lengths, [draft.end, int(translation.to_draft.exact[3])])
    options = {"proposer": proposer, "inputs": inputs, "prompt": prompt}
    for state in decode_exactly(
        module, encoder_out, lengths, [30, 30], shape=DraftShape(4), **options
    ):
        assert state.statistics.decoder_calls == -(-(len(state.tokens) + state.ended) // 5)


DRAFTS = ["fine", "few", "characters", "shuffled characters", "coarse"]
DRAFTS += ["small", "unigram", "char", "word"]


def random_case(seed, main, translation):
    rng = random.Random(f"{seed} {main}")
    module, vocab_size = shared_decoder(seed, "none"), len(translation.to_draft.target)
    draft = shared_decoder(seed + 9, "none", vocab_size=vocab_size, num_blocks=1)
    proposer = DraftModelProposer(build_runtime(draft), EOS, translation)
    encoder_out, lengths = random_encoder_out(
        seed, [rng.randint(5, 12) for _ in range(rng.randint(1, 4))]
    )
    return rng, module, proposer, encoder_out, lengths, draft_inputs(encoder_out, lengths, [1, 2])


@pairs(main=["coarse", "characters"], draft=DRAFTS, seed=range(2))
def test_greedy_text_and_nbest_are_exact(translations, main, draft, seed):
    case = random_case(seed, main, translations(main, draft))
    rng, module, proposer, encoder_out, lengths, inputs = case
    most = [rng.choice([1, 7, 25]) for _ in lengths]
    shape = DraftShape(rng.choice([1, 3, 6]), rng.choice([1, 2, 3]), rng.choice([None, 6]))
    options = {"inputs": inputs, "proposer": proposer}
    decode_exactly(module, encoder_out, lengths, most, shape=shape, **options)
    beam_size = rng.randint(1, 5)
    weights = make_weights(ctc=rng.choice([0.0, 0.3]), lm=rng.choice([0.0, 0.4]))
    shape = DraftShape(rng.choice([1, 4]), rng.choice([1, beam_size]), rng.choice([None, 12]))
    audio = encoder_out, lengths, LengthLimits(0.7)
    assert_nbest_is_espnets(module, seed, weights, beam_size, shape, *audio, **options)


@combinations(draft=["fine", "small"])
def test_a_batch_equals_single_utterances(translations, draft):
    _, module, proposer, *_ = random_case(5, "coarse", translations("coarse", draft))
    audio = random_encoder_out(5, [9, 2, 5, 7])
    options = {"inputs": draft_inputs(*audio, [1, 2]), "shape": DraftShape(4, 2)}
    assert_decoded_alike_alone(module, [20, 10, 15, 3], *audio, proposer=proposer, **options)


@combinations(draft=["fine", "few"])
def test_a_draft_model_with_few_positions_or_tokens(translations, draft):
    """The search continues without drafts of what the draft model cannot write."""
    translation = translations("coarse", draft)
    module, audio = shared_decoder(6, "none"), random_encoder_out(6, [6, 4])
    sizes = {"vocab_size": len(translation.to_draft.target), "max_target_positions": 9}
    proposer = DraftModelProposer(build_runtime(tiny_decoder(7, "none", **sizes)), EOS, translation)
    decode_exactly(module, *audio, [40, 3], [40, 0], shape=DraftShape(5), proposer=proposer)


def begin(decoder, eos, translation, prompt):
    encoder_out, lengths = random_encoder_out(0, [4])
    root = Prefix(0)
    context = DraftContext([root], encoder_out.device, draft_inputs(encoder_out, lengths, prompt))
    return DraftModelProposer(decoder, eos, translation).begin(context), root


def logits_after(proposer, root, tokens):
    states = proposer.start([root])
    for token in tokens:
        states = proposer.advance(states, torch.tensor([token]))
    return proposer.logits(states)[0]


def table_decoder(table, vocabulary):
    """Build a draft model whose next-token probabilities are given by text, else all are equal."""

    def logits(hidden):
        rows = torch.full((len(hidden), len(vocabulary)), 1e-9)
        for row, path in zip(rows, hidden.tolist(), strict=True):
            text = vocabulary.write([token for token in path if token >= 0][1:]).decode()
            for token, probability in table.get(text, {}).items():
                row[vocabulary.ids[token.encode()]] = probability
        return rows.log()

    decoder = scripted_decoder([[]], len(vocabulary), vocabulary.end)
    decoder.logits = logits
    return decoder


@pytest.fixture
def begin_table(vocabularies, translations):
    """A function that begins a proposer of a ``table_decoder``; the main vocabulary is "coarse"."""
    fine, translation = vocabularies["fine"], translations("coarse", "fine")
    return lambda table: begin(table_decoder(table, fine), EOS, translation, [0])


def test_an_unfinished_word_is_retokenized(begin_table, vocabularies):
    """After ` ba` the draft continues ` bako`, which agrees with it, instead of ` b`, `a`."""
    ids = vocabularies["coarse"].ids
    table = {"": {" bako": 0.3, " b": 0.2, "m": 0.5}, " b": {"a": 0.9, "m": 0.1}, " ba": {"m": 1.0}}
    proposer, root = begin_table(table)
    logits = logits_after(proposer, root, [ids[b" ba"]])
    # ` bako` is known to continue ` ba`, so that ` ba` is not evaluated to detect a word end.
    assert int(logits.argmax()) == ids[b"ko"]
    assert float(logits.max().exp()) == pytest.approx(0.3, abs=0.01)
    assert logits[ids[b" ba"]] == logits[ids[b"m"]] == UNKNOWN
    probabilities = logits_after(proposer, root, []).exp()
    # The first main token of ` bako` is ` ba`; ` b` is no main token, its first one is the space.
    for token, probability in {b"m": 0.5, b" ba": 0.3, b" ": 0.2}.items():
        assert float(probabilities[ids[token]]) == pytest.approx(probability, abs=0.01)
    logits = logits_after(proposer, root, [ids[b" ba"], ids[b"m"]])
    assert logits.shape == (VOCAB_SIZE,) and logits.isfinite().all()


def test_several_draft_tokens_make_one_main_token(begin_table, vocabularies):
    """` `, `k`, `o` become ` ko` with the probability of the first token."""
    table = {"": {" ": 0.7, " b": 0.3}, " ": {"k": 1.0}, " k": {"o": 1.0}, " ko": {" ": 1.0}}
    logits = logits_after(*begin_table(table | {" ko ": {"m": 1.0}}), [])
    assert int(logits.argmax()) == vocabularies["coarse"].ids[b" ko"]
    assert float(logits.max().exp()) == pytest.approx(0.7, abs=0.01)


def test_equal_texts_with_other_special_token_ids(translations, vocabularies):
    v3, v2 = vocabularies["whisper_large_v3"], vocabularies["whisper_multilingual"]
    translation = translations("whisper_large_v3", "whisper_multilingual")
    module = tiny_decoder(1, "none", vocab_size=len(v2), num_blocks=1)
    proposer, root = begin(build_runtime(module), v3.end, translation, [v2.start])
    assert isinstance(proposer._prefix_map, OneToOne)
    tokens = [*v3.encode(" hello there"), v3.special["0.50"], v3.special["yue"]]
    logits = logits_after(proposer, root, tokens)
    draft_tokens = [v2.start, *v2.encode(" hello there"), v2.special["0.50"]]
    draft_logits = next_logits(module, random_encoder_out(0, [4])[0], draft_tokens)
    assert logits.shape == (51866,)
    torch.testing.assert_close(logits[:50257], draft_logits[:50257], rtol=1e-4, atol=1e-4)
    ids = {name: number for number, name in enumerate(v2.names) if name}
    for number, name in enumerate(v3.names):
        if name is not None:
            expected = draft_logits[ids[name]] if name in ids else torch.tensor(UNKNOWN)
            torch.testing.assert_close(logits[number], expected, rtol=1e-4, atol=1e-4)
    assert logits[v3.special["yue"]] == UNKNOWN


def test_finished_words_take_no_memory(translations):
    """Predictions for finished words are dropped; the tree has the text and the last drafts."""
    translation = translations("whisper_en", "whisper_multilingual")
    main, draft = translation.to_draft.source, translation.to_draft.target
    [sentence] = make_sentences(1, seed=7)
    text = f" {sentence} {sentence} {sentence}"
    tokens, draft_tokens = main.encode(text), draft.encode(text)
    drafter = scripted_decoder([draft_tokens], len(draft), draft.end)
    proposer, tip = begin(drafter, main.end, translation, [0, 1])
    sizes = []
    for token in tokens:
        tip = path_from(tip, [token])
        states = proposer.advance(proposer.start([tip.parent]), torch.tensor([token]))
        assert int(proposer.logits(states)[0].argmax()) in (*tokens, main.end)
        proposer.keep([tip])
        ancestors = proposer._draft_prefixes[tip].base.ancestors()
        assert sum(node in proposer._prefix_map._predictions for node in ancestors) <= 1
        sizes.append(proposer.tree.state.num_nodes)
    assert max(sizes) <= 2 + len(draft_tokens) + 1


@combinations(text=[b" b", b" ba", b"\xff", "ü".encode(), b" bako", b"zz"])
def test_prefix_index(vocabularies, text):
    ids = vocabularies["fallback"].ids
    index = PrefixIndex(vocabularies["fallback"])
    longer = {n for token, n in ids.items() if token.startswith(text) and token != text}
    beginnings = {n for token, n in ids.items() if token and text.startswith(token)}
    assert set(index.extensions(text)) == longer
    assert set(index.compatible(text)) == longer | beginnings
    assert len(index.compatible(text)) == len(longer | beginnings)


def test_a_tokenizer_of_another_model_is_refused(vocabularies):
    pair = vocabularies["coarse"], vocabularies["fine"]
    message = f"3 output tokens, .* tokenizer has {len(pair[0])}"
    assert_refused(message, Translation.between, *pair, size=3)
