"""Logits of a draft model with another vocabulary, as the main model's vocabulary."""

import pytest
import torch
from made_vocabularies import make_sentences
from scripted import draft_inputs, path_from, scripted_decoder
from tiny import EOS, VOCAB_SIZE, random_memory, tiny_decoder

from espnet_medusa.draft.interpreter import UNKNOWN, OneToOne
from espnet_medusa.draft.model import DraftModelProposer
from espnet_medusa.errors import InputError
from espnet_medusa.runtime.build import build_runtime
from espnet_medusa.tree.prefix import Prefix
from espnet_medusa.tree.proposer import DraftContext
from espnet_medusa.vocabulary.translation import PrefixIndex, Translation


def begin(decoder, eos, translation, prompt):
    """Return a draft model proposer begun for one utterance, and its root."""
    memory, lengths = random_memory(0, [4])
    root = Prefix(0)
    context = DraftContext([root], memory.device, draft_inputs(memory, lengths, prompt))
    return DraftModelProposer(decoder, eos, translation).begin(context), root


def logits_after(proposer, root, tokens):
    """Return the proposer's logits (V,) after tokens of the main model."""
    states = proposer.start([root])
    for token in tokens:
        states = proposer.advance(states, torch.tensor([token]))
    return proposer.logits(states)[0]


class TableDecoder:
    """A draft model whose next-token probabilities are given by text; elsewhere it ends."""

    def __init__(self, table, vocabulary):
        self.table, self.vocabulary = table, vocabulary
        self.inner = scripted_decoder([[]], len(vocabulary), vocabulary.end)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def logits(self, hidden):
        rows = torch.full((len(hidden), len(self.vocabulary)), 1e-9)
        for row, path in zip(rows, hidden.tolist(), strict=True):
            tokens = [token for token in path if token >= 0][1:]
            next_tokens = self.table.get(self.vocabulary.write(tokens).decode(), {})
            for token, probability in next_tokens.items():
                row[self.vocabulary.ids[token.encode()] if token else EOS + 2] = probability
        return rows.log()


@pytest.fixture
def begin_table(vocabularies, translations):
    """A function that begins a proposer of a ``TableDecoder``; the main vocabulary is "coarse"."""
    return lambda table: begin(
        TableDecoder(table, vocabularies["fine"]), EOS, translations("coarse", "fine"), [0]
    )


def test_an_unfinished_word_is_retokenized(begin_table, vocabularies):
    """After ` ba` the draft continues ` bako`, which agrees with it, instead of ` b`, `a`."""
    ids = vocabularies["coarse"].ids
    proposer, root = begin_table(
        {"": {" bako": 0.3, " b": 0.2, "m": 0.5}, " b": {"a": 0.9, "m": 0.1}, " ba": {"m": 1.0}}
    )
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


@torch.no_grad()
def test_equal_texts_with_other_special_token_ids(translations, vocabularies):
    """Each logit of the draft model moves to the main model's id of the same token."""
    v3, v2 = vocabularies["whisper_large_v3"], vocabularies["whisper_multilingual"]
    translation = translations("whisper_large_v3", "whisper_multilingual")
    module = tiny_decoder(1, "none", vocab_size=len(v2), num_blocks=1)
    proposer, root = begin(build_runtime(module), v3.end, translation, [v2.start])
    assert isinstance(proposer._interpreter, OneToOne)
    tokens = [*v3.encode(" hello there"), v3.special["0.50"], v3.special["yue"]]
    logits = logits_after(proposer, root, tokens)
    draft_tokens = [v2.start, *v2.encode(" hello there"), v2.special["0.50"]]
    memory, lengths = random_memory(0, [4])
    sizes = torch.tensor([len(draft_tokens)])
    draft_logits = module(memory, lengths, torch.tensor([draft_tokens]), sizes)[0][0, -1]
    assert logits.shape == (51866,)
    torch.testing.assert_close(logits[:50257], draft_logits[:50257], rtol=1e-4, atol=1e-4)
    ids = {name: number for number, name in enumerate(v2.names) if name}
    for number, name in enumerate(v3.names):
        if name is not None:
            expected = draft_logits[ids[name]] if name in ids else torch.tensor(UNKNOWN)
            torch.testing.assert_close(logits[number], expected, rtol=1e-4, atol=1e-4)
    assert logits[v3.special["yue"]] == UNKNOWN


@torch.no_grad()
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
        ancestors = proposer._places[tip].base.ancestors()
        assert sum(node in proposer._interpreter._predictions for node in ancestors) <= 1
        sizes.append(proposer.tree.state.num_nodes)
    assert max(sizes) <= 2 + len(draft_tokens) + 1


@pytest.mark.parametrize("text", [b" b", b" ba", b"\xff", "ü".encode(), b" bako", b"zz"])
def test_prefix_index(vocabularies, text):
    ids = vocabularies["fallback"].ids
    index = PrefixIndex(vocabularies["fallback"])
    longer = {n for token, n in ids.items() if token.startswith(text) and token != text}
    beginnings = {n for token, n in ids.items() if token and text.startswith(token)}
    assert set(index.extensions(text)) == longer
    assert set(index.compatible(text)) == longer | beginnings
    assert len(index.compatible(text)) == len(longer | beginnings)


def test_a_tokenizer_of_another_model_is_refused(vocabularies):
    main, draft = vocabularies["coarse"], vocabularies["fine"]
    with pytest.raises(InputError, match=f"3 output tokens, its tokenizer {len(main)}"):
        Translation.between(main, draft, size=3)
