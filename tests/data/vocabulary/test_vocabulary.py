"""Vocabularies of all tokenizers, against the tokenizers."""

import made_vocabularies
import pytest
import sentencepiece
import yaml
from refusals import assert_refused, refuses
from tokenizers import Tokenizer, models, normalizers
from transformers import PreTrainedTokenizerFast
from whisper.tokenizer import get_encoding

from espnet_medusa.data.files.token_list import read_token_list, write_token_list
from espnet_medusa.data.vocabulary.vocabulary import bare
from espnet_medusa.networks.tokenizers import (
    BUNDLED,
    hugging_face_vocabulary,
    open_vocabulary,
    sentencepiece_vocabulary,
    token_list_vocabulary,
)
from espnet_medusa.networks.whisper.text import TextOptions, find_text
from espnet_medusa.networks.whisper.tokens import make_tokenizer

FILES = {
    "whisper_en": ("gpt2", 99),
    "whisper_multilingual": ("multilingual", 99),
    "whisper_large_v3": ("multilingual", 100),
}


@pytest.mark.parametrize("name", BUNDLED)
def test_bytes_of_whisper_equal_openais(name):
    ours, encoding = made_vocabularies.open_bundled(name), get_encoding(*FILES[name])
    special = {encoding.encode_single_token(token) for token in encoding.special_tokens_set}
    assert len(ours) == encoding.n_vocab == BUNDLED[name]
    for token in range(encoding.n_vocab):
        written = encoding.decode_single_token_bytes(token)
        expected = (None, written.decode()) if token in special else (written, None)
        assert (ours.contents[token], ours.names[token]) == expected
    ends = ours.names[ours.start], ours.names[ours.end]
    assert ends == ("<|startoftranscript|>", "<|endoftext|>")


@pytest.mark.parametrize("name", BUNDLED)
def test_parts_of_characters_are_merged_as_by_openai(name):
    encoding = get_encoding(*FILES[name])
    parts = [sign.encode()[:2] for sign in "你好こ♪“🙂"] + [b"\x99\x82", b"\xff"]
    ours = [made_vocabularies.open_bundled(name).encode(part) for part in parts]
    assert ours == [encoding._encode_single_piece(part) for part in parts]
    assert min(map(len, ours)) == 1
    assert any(len(tokens) < len(part) for tokens, part in zip(ours, parts, strict=True))


@pytest.mark.parametrize("kind", made_vocabularies.MODELS)
def test_tokens_within_a_text_equal_sentencepieces(tmp_path, kind):
    path = made_vocabularies.train_sentencepiece(tmp_path, kind)
    ours, model = open_vocabulary(path), sentencepiece.SentencePieceProcessor(model_file=str(path))
    words = made_vocabularies.make_words(300, seed=1)
    for sentence in made_vocabularies.make_sentences(100, 1, words):
        assert ours.encode(" " + sentence) == model.encode(sentence)
        assert ours.write(ours.encode(sentence)) == sentence.encode()
    assert b"".join(ours.contents[token] for token in ours.encode("  ba")) == b"  ba"
    assert (None in ours.encode("你")) == (kind != "fallback")


def test_parts_without_a_token_are_none():
    chars = token_list_vocabulary(["<unk>", "<space>", "a"], "char")
    assert chars.encode("a b") == [2, 1, None]
    words = token_list_vocabulary(["<unk>", "a", "b"], "word")
    assert words.encode(" a  b c") == [1, 2, None]
    # Without a space before it, it continues a word.
    assert words.encode("a b") == [None, 2]
    assert chars.encode(b"a\xff") == [2, None]
    assert (chars.unknown, words.leading_space, chars.leading_space) == (0, True, False)


def test_names_of_special_tokens_are_compared_without_brackets():
    pairs = {"<|0.00|>": "<0.00>", "<|nocaptions|>": "<|nospeech|>", "<|en|>": "<en>"}
    assert all(bare(one) == bare(other) for one, other in pairs.items())
    assert len({bare(name) for name in ("<s>", "</s>", "<sos/eos>", "<unk>")}) == 4


def test_espnet_models_are_found(tmp_path):
    tokens = made_vocabularies.make_list(tmp_path, "bpe")
    listed, model = tokens.read_text("utf-8").split(), tokens.with_name("bpe.model")
    ours = open_vocabulary(tokens)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for sentence in made_vocabularies.make_sentences(20, seed=1):
        pieces = processor.encode_as_pieces(sentence)
        assert ours.encode(" " + sentence) == [listed.index(piece) for piece in pieces]
    for written in (listed, str(tokens)):
        config = {"token_list": written, "token_type": "bpe", "bpemodel": str(model)}
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), "utf-8")
        for path in (tmp_path, tmp_path / "config.yaml"):
            assert open_vocabulary(path).contents == ours.contents


def test_folders_of_tokenizers_are_found(tmp_path):
    tokenizer = make_tokenizer(51864)
    tokenizer.save_pretrained(tmp_path)
    ours, bundled = open_vocabulary(tmp_path), made_vocabularies.open_bundled("whisper_en")
    assert (ours.contents, ours.names) == (bundled.contents, bundled.names)
    assert ours.encode("<|en|>") == bundled.encode("<|en|>") and len(ours.encode("<|en|>")) > 1
    assert token_list_vocabulary([], "hugging_face", tmp_path).contents == ours.contents
    assert ours.encode("e\u0301") != ours.encode("é")
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    assert hugging_face_vocabulary(tokenizer).encode("e\u0301") == ours.encode("é")


@refuses(
    ("phn", "token_type: phn; allowed: bpe, char, word"), ("bpe", "bpe without bpemodel; give")
)
def test_bad_token_types_are_refused(token_type):
    token_list_vocabulary(["<unk>"], token_type)


@refuses(
    ("tokens.txt", "<unk>\n▁a\n", "sentencepiece tokens needs .*bpe.model; add"),
    ("tokens.txt", "<unk>\nĠa\n", "byte-level BPE; give the tokenizer's folder"),
    ("tokens.txt", b"\xff\xfe", "cannot be read .*; give one token per line"),
    ("config.yaml", "encoder: conformer\n", "needs token_list and token_type; give the config"),
    *(
        ("config.yaml", f"token_list: {tokens}\ntoken_type: char\n", "token_list: .*; allowed")
        for tokens in ("5", "[1]", "{a: b}", "null")
    ),
    ("config.yaml", "token_list: [a]\ntoken_type: bpe\nbpemodel: 5\n", "bpemodel: 5; allowed"),
)
def test_bad_files_are_refused(name, content, tmp_path):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    open_vocabulary(path)


def test_bad_tokenizers_are_refused(tmp_path):
    message = "nowhere.model': cannot be read; give the path"
    assert_refused(message, sentencepiece_vocabulary, tmp_path / "nowhere.model")
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0})))
    assert_refused("of kind WordLevel: allowed are byte-level BPE", hugging_face_vocabulary, words)


def test_only_newlines_separate_tokens(tmp_path):
    path = tmp_path / "tokens.txt"
    tokens = ["<unk>", "<space>", "\u2028", "\x85", "\u3000", "a", "\x0b", "<sos/eos>"]
    write_token_list(path, tokens)
    assert read_token_list(path) == tokens
    ours = open_vocabulary(path)
    assert ours.encode("\u3000 a\u2028\x85") == [4, 1, 5, 2, 3]
    assert (len(ours), ours.start, ours.end) == (8, 7, 7)
    ids = {"decoder_start_token_id": 0, "eos_token_id": 3}
    assert find_text(8, None, TextOptions(token_list=path), ids).tokens == tuple(tokens)
    path.write_text("")
    assert read_token_list(path) == []
