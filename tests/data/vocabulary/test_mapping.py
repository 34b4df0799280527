"""Maps between vocabularies, and texts converted with them."""

from pathlib import Path

import pytest
import sentencepiece
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_vocabularies import (
    WORDS,
    make_sentences,
    make_words,
    shared_folder,
    shared_map,
    shared_vocabularies,
)
from refusals import command_refused
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from whisper.tokenizer import get_encoding

from espnet_medusa.bin.vocabulary_coverage import main as print_coverage
from espnet_medusa.data.vocabulary.mapping import map_vocabularies
from espnet_medusa.networks.tokenizers import (
    BUNDLED,
    hugging_face_vocabulary,
    token_list_vocabulary,
)

PLAIN = settings(max_examples=100, deadline=None, derandomize=True)
# Several scripts, runs of spaces, characters of up to four bytes.
ANY_TEXT = st.lists(
    st.sampled_from([*"abcsé你好🙂н\n,.1", " ", "   ", "'s", " the"]), max_size=30
).map("".join)
PAIRS = [
    ("whisper_en", "whisper_multilingual"), ("whisper_multilingual", "whisper_large_v3"),
    ("whisper_multilingual", "fallback"), ("whisper_en", "unigram"), ("small", "large"),
    ("unigram", "whisper_large_v3"), ("char", "whisper_multilingual"), ("word", "whisper_en"),
    ("char", "large"), ("word", "small"), ("bpe", "whisper_en"),
]  # fmt: skip


@pytest.fixture(scope="module")
def vocabularies():
    return shared_vocabularies()


@pytest.fixture(scope="module")
def maps():
    return shared_map


def begin(vocabulary, text, default=None):
    """The bytes of a sentence at the beginning of a vocabulary's text."""
    if vocabulary.leading_space is None:
        return f" {text}".encode() if default is None else default
    return b" " * vocabulary.leading_space + text.encode()


def push(run, tokens):
    for token in tokens:
        run = run.push(token)
    return run


def follow(mapped, tokens):
    return push(mapped.follow(), tokens).end().tokens


def test_ordinary_tokens_of_v2_and_v3_are_equal(maps):
    v2, v3 = "whisper_multilingual", "whisper_large_v3"
    forth, back = maps(v2, v3), maps(v3, v2)
    assert forth.same_text and back.same_text
    assert forth.exact[:50257].tolist() == back.exact[:50257].tolist() == [*range(50257)]
    assert not forth.unmapped and not forth.pieces
    assert [back.source.names[token] for token in back.unmapped] == ["<|yue|>"]
    assert forth.coverage().exact == 50257 and forth.coverage().unmapped == 0


@pytest.mark.parametrize("source", BUNDLED)
@pytest.mark.parametrize("target", BUNDLED)
def test_common_special_tokens_map_by_name(maps, source, target):
    mapped = maps(source, target)
    coverage = mapped.coverage()
    common = set(coverage.special) & {name for name in mapped.target.names if name}
    assert len(common) >= 1608 and "<|30.00|>" in common and "<|de|>" in common
    assert all(coverage.special[name] == name for name in common)
    unmapped = [name for name, other in coverage.special.items() if other is None]
    assert unmapped == sorted(set(coverage.special) - common)


def test_pieces_of_english_tokens_equal_openais_tokens(maps):
    mapped = maps("whisper_en", "whisper_multilingual")
    encoding = get_encoding("multilingual", 99)
    compared = 0
    for token, pieces in mapped.pieces.items():
        text = mapped.source.contents[token]
        assert mapped.target.write(pieces) == text and len(pieces) > 1
        if not text.isspace() and b"\xef\xbf\xbd" not in text and is_utf8(text):
            assert list(pieces) == encoding.encode_ordinary(text.decode())
            compared += 1
    coverage = mapped.coverage()
    assert compared > 20000
    assert coverage.exact + coverage.multi_token == 50256 and coverage.unmapped == 0


@pytest.mark.parametrize("source, target", PAIRS)
def test_maps_write_the_same_bytes(maps, source, target):
    for names in ((source, target), (target, source)):
        mapped = maps(*names)
        kinds, unmapped, first = [0, 0, 0], set(mapped.unmapped), mapped.first.tolist()
        for token, number in enumerate(mapped.exact.tolist()):
            text = mapped.source.contents[token]
            if number >= 0:
                assert mapped.target.contents[number] == text
                assert first[token] == number
            elif token in mapped.pieces:
                assert mapped.target.write(mapped.pieces[token]) == text
                assert first[token] == mapped.pieces[token][0]
            else:
                assert token in unmapped and first[token] == -1
                assert text not in mapped.target.ids
            kinds[0 if number >= 0 else 1 if token in mapped.pieces else 2] += 1
        coverage = mapped.coverage()
        special = len(coverage.special)
        assert kinds[1] == coverage.multi_token
        assert coverage.exact + coverage.multi_token + coverage.unmapped + special == sum(kinds)


def test_a_thousand_sentences_between_two_sentencepiece_models(maps):
    forth, back = maps("small", "large"), maps("large", "small")
    paths = [str(Path(shared_folder().name, f"{kind}.model")) for kind in ("small", "large")]
    small, large = (sentencepiece.SentencePieceProcessor(model_file=path) for path in paths)
    for sentence in make_sentences(1000, 2, make_words(900, seed=2)):
        over = follow(forth, small.encode(sentence))
        assert list(over) == large.encode(sentence)
        assert list(follow(back, over)) == small.encode(sentence)
        assert small.decode(list(follow(back, over))) == sentence


@pytest.mark.parametrize("source, target", PAIRS)
def test_texts_convert_to_every_other_kind_and_back(maps, source, target):
    forth, back = maps(source, target), maps(target, source)
    for sentence in make_sentences(60, seed=0):
        text = begin(forth.source, sentence)
        tokens = forth.source.encode(text)
        over = follow(forth, tokens)
        assert [*over] == forth.target.encode(begin(forth.target, sentence, text))
        assert [*follow(back, over)] == tokens


@PLAIN
@given(data=st.data())
def test_a_follower_has_the_tokens_of_the_text_so_far(maps, data):
    """After each token: the tokens equal those of the text so far; settled tokens never change."""
    mapped = maps(*data.draw(st.sampled_from(PAIRS)))
    if mapped.source.leading_space is None and mapped.target.leading_space is None:
        text = data.draw(ANY_TEXT)
    else:
        text = " ".join(data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6)))
        text = begin(mapped.source, text).decode()
    run, settled, written = mapped.follow(), (), b""
    for token in mapped.source.encode(text):
        run = run.push(token)
        written += mapped.source.contents[token]
        whole = written[: len(written) - len(run.pending)]
        if whole and mapped.target.leading_space is not None:
            whole = b" " * mapped.target.leading_space + whole.removeprefix(b" ")
        assert [*run.tokens] == mapped.target.encode(whole)
        assert run.settled[: len(settled)] == settled
        assert run.tokens[: len(run.settled)] == run.settled
        settled = run.settled
    assert run.pending == b"" and run.end().tokens == run.tokens


@PLAIN
@given(text=ANY_TEXT)
def test_english_tokens_convert_to_openais_tokens(maps, text):
    mapped = maps("whisper_en", "whisper_multilingual")
    over = follow(mapped, get_encoding("gpt2", 99).encode_ordinary(text))
    assert [*over] == get_encoding("multilingual", 99).encode_ordinary(text)


@pytest.mark.parametrize("source, target", PAIRS)
def test_probabilities_of_tokens_with_one_first_token_are_added(maps, source, target):
    mapped = maps(source, target)
    logits = torch.randn(3, len(mapped.source) + 3, generator=torch.manual_seed(0)).double()
    logits[2] = -torch.inf
    expected = [dict.fromkeys(mapped.first_tokens.tolist(), 0.0) for _ in logits]
    for row, known in zip(logits.exp().tolist(), expected, strict=True):
        for token, first in enumerate(mapped.first.tolist()):
            if first >= 0:
                known[first] += row[token]
    expected = torch.tensor([[*row.values()] for row in expected], dtype=torch.float64)
    torch.testing.assert_close(mapped.map_logits(logits).exp(), expected)
    assert len(mapped.first_tokens) == len(set(mapped.first.tolist()) - {-1})


@PLAIN
@given(data=st.binary(max_size=12))
def test_any_bytes_are_converted(maps, data):
    """Byte by byte, valid UTF-8 or not, into byte-level BPE and into byte fallback."""
    mapped = maps("whisper_en", "whisper_multilingual")
    single = [mapped.source.ids[bytes([byte])] for byte in data]
    assert mapped.target.write(follow(mapped, single)) == data
    mapped = maps("whisper_en", "fallback")
    expected = b" " + data.removeprefix(b" ") if data else b""
    assert mapped.target.write(follow(mapped, single)) == expected


@PLAIN
@given(text=ANY_TEXT, cut=st.integers(0, 60), pair=st.sampled_from(PAIRS[:2]))
def test_a_draft_continues_the_main_text(maps, text, cut, pair):
    """The main text ends after `cut` bytes, maybe within a character; the draft has whole ones."""
    mapped = maps(*pair)
    written, ahead = text.encode()[:cut], b""
    while written and not is_utf8(written):
        ahead, written = written[-1:] + ahead, written[:-1]
    rest = text.encode()[len(written) :]
    run = push(mapped.follow(skip=ahead), mapped.source.encode(rest))
    assert mapped.target.write(run.end().tokens) == rest[len(ahead) :]


def is_utf8(data):
    try:
        return data.decode() is not None
    except UnicodeDecodeError:
        return False


def test_a_draft_that_contradicts_the_main_text_ends(maps):
    mapped = maps("whisper_en", "whisper_multilingual")
    run = push(mapped.follow(skip="你".encode()[:2]), mapped.source.encode("好你"))
    assert run.skip is None and run.end().tokens == ()


def test_an_incomplete_character_is_pending(maps):
    mapped = maps("whisper_en", "unigram")
    tokens = [mapped.source.ids[text] for text in (b" ba", b"\xc3", b"\x9f")]
    run = push(mapped.follow(), tokens[:-1])
    assert run.pending == b"\xc3" and mapped.target.write(run.tokens) == b" ba"
    assert mapped.target.write(run.push(tokens[-1]).tokens) == " baß".encode()
    # An incomplete character at the end of the text is unknown.
    assert run.end().tokens == (*run.tokens, mapped.target.unknown)


def test_special_tokens_among_text(maps):
    mapped = maps("whisper_multilingual", "small")
    special = mapped.source.special
    run = push(mapped.follow(), [special[name] for name in ("startoftranscript", "de", "0.00")])
    assert run.tokens == (mapped.target.start,)
    run = push(run, [*mapped.source.encode(" ba"), special["1.00"], special["endoftext"]])
    spelt = (mapped.target.start, *mapped.target.encode(" ba"), mapped.target.end)
    assert run.tokens == run.settled == spelt


def test_starts_and_ends_map_between_families(maps):
    def special(*names):
        return {name: other for name, other in maps(*names).coverage().special.items() if other}

    whisper = {"<|startoftranscript|>": "<sos/eos>", "<|endoftext|>": "<sos/eos>"}
    assert special("whisper_en", "char") == whisper
    assert special("char", "whisper_en") == {"<sos/eos>": "<|endoftext|>"}
    assert special("small", "char") == {"<unk>": "<unk>", "<s>": "<sos/eos>", "</s>": "<sos/eos>"}
    assert special("char", "small") == {"<unk>": "<unk>", "<sos/eos>": "</s>"}


def test_normalized_tokens_are_unmapped(vocabularies):
    """sentencepiece replaces a full-width a by a, which has other bytes."""
    target = vocabularies["unigram"]
    mapped = map_vocabularies(token_list_vocabulary(["<unk>", "a", "ａ"], "char"), target)
    assert target.encode("ａ") == target.encode("a") == [mapped.exact[1]]
    assert mapped.unmapped == (2,)


def test_converted_sentencepiece(vocabularies):
    """BPE with word boundaries and byte fallback in Hugging Face's format, as Llama's."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abc", "▁a"]
    vocabulary = {name: number for number, name in enumerate(names)}
    merges = [("▁", "a")]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), **special)
    ours = hugging_face_vocabulary(tokenizer)
    assert [names[token] for token in ours.encode(" ab é")] == ["▁a", "b", "▁", "<0xC3>", "<0xA9>"]
    assert ours.encode(b"\xff") == [names.index("<0xFF>")]
    assert (ours.start, ours.end, ours.unknown) == (1, 2, 0)
    mapped = map_vocabularies(vocabularies["whisper_en"], ours)
    assert ours.write(follow(mapped, mapped.source.encode("ab é"))) == " ab é".encode()
    # 256 bytes and ` a`; every other token maps to several tokens.
    coverage = mapped.coverage()
    assert (coverage.exact, coverage.multi_token, coverage.unmapped) == (257, 50256 - 257, 0)


def test_the_command_prints_both_ways(capsys):
    print_coverage(["whisper_multilingual", "openai/whisper-large-v3"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["exact", "50257", "of", "50257", "100.00", "%"] in lines
    assert ["special", "1608", "of", "1608", "100.00", "%"] in lines
    assert ["special,", "unmapped", "1", "of", "1609", "0.06", "%:", "<|yue|>"] in lines
    with command_refused(capsys, "cannot be read"):
        print_coverage(["whisper_en", "./nothing/of/this/name.model"])
