"""Whisper's tokenizer, prompts and suppressed tokens, against openai-whisper's own."""

import contextlib
import json
import shutil

import numpy as np
import pytest
from refusals import assert_refused
from transformers import AutoTokenizer
from whisper.tokenizer import get_tokenizer

from espnet_medusa.data.errors import InputError
from espnet_medusa.espnet.training.preprocessor import WhisperPreprocessor
from espnet_medusa.networks.whisper.tokens import (
    END,
    START,
    VOCABULARIES,
    load_tokenizer,
    make_tokenizer,
    read_whisper_tokens,
)

TEXTS = [
    "Hello, world! It's 3.5 o'clock.",
    " Grüße — “ça va” 你好 こんにちは 🙂  double  spaces\n",
    "i'll don't WON'T 12345 ♪♪ la [noise]",
    "",
]


@pytest.fixture(scope="module", params=VOCABULARIES)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"tokenizer{request.param}")
    make_tokenizer(request.param).save_pretrained(folder)
    name, num_languages = VOCABULARIES[request.param]
    openai = get_tokenizer(name == "multilingual", num_languages=num_languages)
    return request.param, folder, load_tokenizer(folder), openai


def test_ids_and_texts_equal_openais(case):
    vocab_size, _, ours, openai = case
    assert len(ours) == vocab_size == openai.encoding.n_vocab
    for text in TEXTS:
        ids = ours(text, add_special_tokens=False)["input_ids"]
        assert ids == openai.encode(text)
        assert ours.decode(ids) == text
    vocabulary = ours.get_vocab()
    assert {name: vocabulary[name] for name in openai.special_tokens} == openai.special_tokens


@pytest.mark.parametrize("kind", ["WhisperTokenizer", "WhisperTokenizerFast"])
def test_whispers_own_tokenizer_class_equals_transformers(case, tmp_path, kind):
    _, folder, ours, _ = case
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tokenizer_class": kind}))
    loaded, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert "WhisperTokenizer" in type(theirs).__name__
    assert loaded.get_vocab() == theirs.get_vocab() == ours.get_vocab()
    assert loaded.special_tokens_map == theirs.special_tokens_map | {"pad_token": END}
    for text in TEXTS:
        ids = loaded(text, add_special_tokens=False)["input_ids"]
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
        prompted = [loaded.convert_tokens_to_ids(START), *ids, loaded.eos_token_id]
        for options in ({}, {"skip_special_tokens": True}):
            assert loaded.decode(prompted, **options) == theirs.decode(prompted, **options)


def test_prompts_and_suppressed_tokens_equal_openais(case):
    vocab_size, _, ours, openai = case
    tokens = read_whisper_tokens(ours)
    assert tokens.prompt("en") == [*openai.sot_sequence_including_notimestamps]
    assert tokens.annotations == openai.non_speech_tokens
    special = {openai.sot, openai.sot_lm, openai.sot_prev, openai.no_speech}
    special |= {openai.transcribe, openai.translate}
    assert tokens.suppressed == sorted({*openai.non_speech_tokens, *special})
    assert tokens.begin_suppressed == [220, openai.eot]
    if vocab_size == 51865:  # as in generation_config.json of openai/whisper-large-v2
        published = [1, 2, 7, 8, 9, 10, 14, 25], [50258, 50358, 50359, 50360, 50361, 50362], 88
        suppressed = tokens.suppressed
        assert (suppressed[:8], suppressed[-6:], len(suppressed)) == published
    if vocab_size == 51864:
        assert not tokens.languages
        assert_refused("'de'.*this model is English-only", tokens.prompt, "de", error=ValueError)
    else:
        codes = {*openai.all_language_codes}
        assert {*tokens.languages} == codes and len(codes) == openai.num_languages
        options = {"language": "de", "task": "translate"}
        german = get_tokenizer(True, num_languages=openai.num_languages, **options)
        assert tokens.prompt("de", "translate") == [*german.sot_sequence_including_notimestamps]
        assert_refused("language: 'xx'; allowed: detect .*, af am", tokens.prompt, "xx")
        assert_refused("task: 'sing'; allowed: transcribe, translate", tokens.prompt, "en", "sing")


def test_labels_are_prompt_and_text(case, tmp_path):
    vocab_size, folder, ours, openai = case
    utt2lang = tmp_path / "utt2lang"
    utt2lang.write_text("a en\n" if vocab_size == 51864 else "a de\n")
    preprocess = WhisperPreprocessor(
        True, utt2lang=str(utt2lang), token_type="hugging_face", bpemodel=str(folder),
        token_list=["<blank>"],
    )  # fmt: skip
    for key, language in (("a", "de"), ("b", "en")):
        prompt = [*openai.sot_sequence_including_notimestamps]
        if vocab_size != 51864 and language == "de":
            prompt[1] = openai.to_language_token("de")
        label = preprocess(key, {"text": "Hello there."})["text"]
        assert label.dtype == np.int64
        assert label.tolist() == [*prompt[1:], *openai.encode(" Hello there.")]


def test_another_tokenizer_is_refused():
    with pytest.raises(ValueError, match="token_type: bpe; allowed .* hugging_face"):
        WhisperPreprocessor(True, token_type="bpe", token_list=["a"], bpemodel="b")
    assert_refused("vocab_size: 300; .* and OpenAI's have", make_tokenizer, 300)
    assert_refused("tokenizer 'nowhere':", load_tokenizer, "nowhere", error=ValueError)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 5}', "\x00", "[" * 100_000])
@pytest.mark.parametrize("kind", ["ctranslate2", "hugging_face"])
def test_a_damaged_tokenizer_is_one_line(tmp_path, content, kind):
    (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "WhisperTokenizer"}')
    if kind == "ctranslate2":
        (tmp_path / "model.bin").write_bytes(b"")
    assert_refused("^tokenizer '.*correct the path$", load_tokenizer, tmp_path)


def test_code_of_a_tokenizer_is_not_run(tmp_path, capfd):
    make_tokenizer(51864).save_pretrained(tmp_path)
    (tmp_path / "code.py").write_text("print('ran code')\n")
    odd = {"model_type": "odd", "tokenizer_class": "Odd"}
    code = {"auto_map": {"AutoTokenizer": ["code.Odd", None], "AutoConfig": "code.Odd"}}
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(odd | json.loads(config.read_text()) | code))
    (tmp_path / "config.json").write_text(json.dumps(odd | code))
    with contextlib.suppress(InputError):  # or it is read without
        load_tokenizer(tmp_path)
    assert "ran code" not in capfd.readouterr().out
