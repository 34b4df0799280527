"""Metadata and vocabularies of fine-tuned checkpoints, against transformers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile
import torch
from cases import cases
from ctranslate2_folder import CONFIG, save_ctranslate2
from experiment import noise
from openai_whisper import noise_and_silence
from refusals import exit_status
from tiny_whisper import BYTES, save_tokenizer_of_bytes, save_whisper_of_bytes, tiny_config
from transformers import AutoTokenizer, GenerationConfig, WhisperForConditionalGeneration
from transformers_whisper import features_of

from espnet_medusa import Speech2Text
from espnet_medusa.bin import convert, transcribe
from espnet_medusa.data.options import read_config
from espnet_medusa.networks.whisper.sizes import are_below
from espnet_medusa.networks.whisper.tokens import (
    decode_added_tokens,
    make_tokenizer,
    read_whisper_tokens,
)
from espnet_medusa.networks.whisper.transcript import TranscriptText, split_words

END, TIMES = 50257, range(50364, 51865)
SHORT = {"search": "greedy", "maxlenratio": -12, "language": "de"}
# Of a tokenizer of bytes: the prompt in German, and the first time.
PROMPT = [BYTES + 1, BYTES + 2, BYTES + 5, BYTES + 10]
FIRST_TIME = BYTES + 11
WHISPERS = {"no_timestamps_token_id": PROMPT[-1], "is_multilingual": True}


def write(folder: Path, name: str, **fields) -> None:
    path = folder / name
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(known | fields))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a tokenizer of bytes, and transformers' model of it."""
    folder = save_whisper_of_bytes(tmp_path_factory.mktemp("tiny"), 5, True, hidden_size=32)
    return folder, WhisperForConditionalGeneration.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def tokens(tiny):
    found = read_whisper_tokens(AutoTokenizer.from_pretrained(tiny[0]))
    assert found.prompt("de") == PROMPT and found.times[0] == FIRST_TIME
    return found


@pytest.fixture(scope="module")
def whole(tiny):
    """The text of the unchanged checkpoint."""
    return ours(tiny[0])


@pytest.fixture
def copied(tiny, tmp_path):
    shutil.copytree(tiny[0], tmp_path / "whisper")
    return tmp_path / "whisper"


def theirs(folder: Path, prompt=PROMPT, most=12, **options) -> list[int]:
    """Transformers' greedy text by the configs of a folder, without end symbols."""
    whisper = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    ends = whisper.generation_config.eos_token_id
    whisper.generation_config.eos_token_id = ends if isinstance(ends, list) else [ends]
    found = whisper.generate(
        features_of(noise(0)), decoder_input_ids=torch.tensor([prompt]), max_new_tokens=most,
        do_sample=False, num_beams=1, **options,
    )[0].tolist()  # fmt: skip
    found = found[len(prompt) :] if found[: len(prompt)] == prompt else found
    return [token for token in found if token not in whisper.generation_config.eos_token_id]


def ours(folder: Path, **options) -> list[int]:
    return Speech2Text.from_pretrained(str(folder), **SHORT | options)(noise(0))[0][2]


@cases(
    ({"eos_token_id": [BYTES]},), ({"eos_token_id": [BYTES, FIRST_TIME]},),
    ({"eos_token_id": None},),
    ({"eos_token_id": []},), ({"pad_token_id": [0, 1]},), ({"pad_token_id": 99999},),
    ({"decoder_start_token_id": PROMPT[:1]},), ({"decoder_start_token_id": None},),
    ({"bos_token_id": None},),
)  # fmt: skip
def test_ids_of_the_generation_config(fields, whole, copied):
    write(copied, "generation_config.json", **fields)
    assert ours(copied) == whole != []
    for name in fields:
        write(copied, "config.json", **{name: 77})  # the generation config has precedence
    expected = ours(copied)
    if fields == {"eos_token_id": None} or fields == {"eos_token_id": []}:
        config = read_config(converted(copied) / "config.yaml", "")
        assert config["model_conf"]["sym_eos"] == config["token_list"][77]
    elif "decoder_start_token_id" not in fields or fields["decoder_start_token_id"]:
        assert expected == whole


def converted(folder: Path) -> Path:
    target = folder.parent / "exp"
    convert.main([str(folder), str(target), "--heads", "none"])
    return target


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_text_ends_at_each_of_several_end_symbols(whole, tokens, copied, beam_size, caplog):
    other = whole[4]
    write(copied, "generation_config.json", eos_token_id=[BYTES, other])
    expected = theirs(copied, **suppressed(tokens))
    assert expected == whole[: whole.index(other)]
    options = {} if beam_size == 1 else {"search": "beam", "beam_size": beam_size}
    found = ours(copied, **options)
    assert other not in found and BYTES not in found
    if beam_size == 1:
        assert found == expected
        assert ours(copied, decoder_precision="int8")[:1] == expected[:1]
    exp = converted(copied)
    again = Speech2Text(asr_model_file=exp / "model.pth", **SHORT | options)
    assert again(noise(0))[0][2] == found


def suppressed(tokens) -> dict[str, list[int]]:
    return {"suppress_tokens": tokens.suppressed, "begin_suppress_tokens": tokens.begin_suppressed}


def test_another_start_symbol_starts_the_prompt(tokens, copied):
    write(copied, "generation_config.json", decoder_start_token_id=BYTES)
    model = Speech2Text.from_pretrained(str(copied), **SHORT)
    [(_, _, found, hypothesis)] = model(noise(0))
    assert hypothesis.yseq.tolist()[:4] == [BYTES, *PROMPT[1:]]
    assert found == theirs(copied, [BYTES, *PROMPT[1:]], **suppressed(tokens))


def test_suppressed_tokens_are_the_checkpoints(whole, copied, caplog):
    lists = {"suppress_tokens": [*{*whole[:3]}], "begin_suppress_tokens": whole[:1]}
    write(copied, "generation_config.json", **WHISPERS, **lists)
    expected = theirs(copied)
    assert ours(copied) == expected != whole
    assert not {*lists["suppress_tokens"]} & {*expected}
    exp = converted(copied)
    conf = read_config(exp / "config.yaml", "")["decoder_conf"]
    assert {name: conf[name] for name in lists} == lists
    assert Speech2Text(asr_model_file=exp / "model.pth", **SHORT)(noise(0))[0][2] == expected
    write(copied, "generation_config.json", suppress_tokens=[-1, BYTES, 99999, *whole[:1]])
    model = Speech2Text.from_pretrained(str(copied), **SHORT)
    assert model.model.options.suppress_tokens == whole[:1]
    assert f"suppress_tokens: ignored: [-1, {BYTES}, 99999]" in caplog.text


@cases(
    (WHISPERS | {"suppress_tokens": [], "begin_suppress_tokens": []}, {}),
    (WHISPERS, {}),  # as transformers writes a list that was set to None
    (WHISPERS, {"suppress_tokens": [5], "begin_suppress_tokens": [6]}),  # has no effect there
    ({"suppress_tokens": None, "begin_suppress_tokens": None}, {}),
)
def test_a_checkpoint_without_suppressed_tokens(generation, config, copied):
    write(copied, "generation_config.json", **generation)
    write(copied, "config.json", **config)
    options = Speech2Text.from_pretrained(str(copied), **SHORT).model.options
    assert options.suppress_tokens == options.begin_suppress_tokens == []
    assert ours(copied) == theirs(copied)


def test_suppressed_tokens_of_a_config_without_generation_config(whole, copied):
    (copied / "generation_config.json").unlink()
    assert ours(copied) == whole
    write(copied, "config.json", suppress_tokens=whole[:2], begin_suppress_tokens=[220])
    assert ours(copied) == theirs(copied) != whole
    options = Speech2Text.from_pretrained(str(copied), suppress_tokens=[], **SHORT).model.options
    assert (options.suppress_tokens, options.begin_suppress_tokens) == ([], [220])


def ctranslate2_of(tiny, folder: Path) -> Path:
    save_ctranslate2(folder, tiny[1])
    shutil.copy(tiny[0] / "tokenizer.json", folder)
    write(folder, "config.json", lang_ids=PROMPT[1:2])
    return folder


def test_suppressed_tokens_of_ctranslate2(tiny, tmp_path):
    folder = ctranslate2_of(tiny, tmp_path / "ct2")
    options = Speech2Text.from_pretrained(str(folder), **SHORT).model.options
    assert options.suppress_tokens == CONFIG["suppress_ids"]
    assert options.begin_suppress_tokens == CONFIG["suppress_ids_begin"]


@pytest.mark.parametrize("kind", ["hugging_face", "ctranslate2"])
@pytest.mark.parametrize("heads", [[[7, 1], [9, 0]], [[0, 1], [0, 2]], "all", [[0]]], ids=str)
def test_alignment_heads_of_another_model(kind, heads, tiny, copied, caplog):
    """A student with its teacher's generation config, as in whisperkittools 45."""
    file = copied / "generation_config.json"
    if kind == "ctranslate2":
        copied = ctranslate2_of(tiny, copied.parent / "ct2")
        file = copied / "config.json"
    write(copied, file.name, alignment_heads=heads)
    model = Speech2Text.from_pretrained(str(copied), **SHORT)
    assert model.asr_model.decoder.alignment_heads == []
    (line,) = [line for line in caplog.messages if "alignment_heads" in line]
    assert f"{file}: alignment_heads: " in line and "upper half of layers" in line
    segments = model.transcribe(noise_and_silence(4, 0), word_timestamps=True)
    assert any(segment.words for segment in segments)


ADDED_BIAS, TIMES_BIAS, END_BIAS = 5, 5, 2


def tuned_vocabulary(folder: Path, vocab_size: int, added=(), seed=2, times=True) -> list[int]:
    """Save a Whisper with other tokens after its own, which it predicts often; return their ids."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer(51865 if times else 50364)
    tokenizer.add_tokens([*added])
    tokenizer.save_pretrained(folder)
    config = tiny_config(vocab_size)
    config.eos_token_id = config.pad_token_id = config.bos_token_id = END
    config.decoder_start_token_id = END + 1
    whisper = WhisperForConditionalGeneration(config)
    for parameter in whisper.parameters():
        torch.nn.init.normal_(parameter, std=0.25)
    ids = tokenizer.convert_tokens_to_ids([*added])
    bias = whisper.model.decoder.layer_norm.bias.data
    bias /= bias.norm()
    with torch.no_grad():
        table = whisper.model.decoder.embed_tokens.weight
        table[ids] += ADDED_BIAS * bias
        table[TIMES[::50] if times else []] += TIMES_BIAS * bias
        table[END] += END_BIAS * bias
    whisper.generation_config = GenerationConfig.from_model_config(config)
    whisper.save_pretrained(folder)
    return ids


ADDED = [" concord", "größe", "tents"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    return folder, tuned_vocabulary(folder, 51865 + len(ADDED), ADDED)


@pytest.mark.parametrize("precision", [None, "int8"])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_added_tokens_are_text(tuned, precision, beam_size):
    folder, added = tuned
    options = {"search": "greedy"} if beam_size == 1 else {"beam_size": beam_size}
    options = {"language": "de", "maxlenratio": -24, **options, "decoder_precision": precision}
    model = Speech2Text.from_pretrained(str(folder), **options)
    assert model.whisper.tokens.times == TIMES
    text, _, ids, _ = model(noise(0))[0]
    assert {*added} & {*ids}, "the model predicts them"
    for name, number in zip(ADDED, added, strict=True):
        assert text.count(name.strip()) >= ids.count(number)
    once = {"temperature_increment_on_fallback": None, "word_timestamps": True}
    segments = [*model.transcribe(noise_and_silence(40, 1), **once)]
    tokens = [token for segment in segments for token in segment.tokens]
    assert {*added} & {*tokens} and {*TIMES} & {*tokens}
    assert all(one.end_s <= one.seek / 100 + 30 for one in segments)
    text = "".join(segment.text for segment in segments)
    assert all(text.count(name.strip()) >= tokens.count(number) > 0 or number not in tokens
               for name, number in zip(ADDED, added, strict=True))  # fmt: skip
    words = "".join(word.text for segment in segments for word in segment.words)
    assert "größe" in words and "größe" in text


def test_tokens_and_words_of_added_tokens():
    tokenizer = make_tokenizer(51865)
    tokenizer.add_tokens(ADDED)
    decode_added_tokens(tokenizer)
    tokens = read_whisper_tokens(tokenizer)
    assert tokens.times == TIMES and 51865 not in tokens.symbols and 51864 in tokens.symbols
    text = TranscriptText(tokenizer, tokens)
    written = [50364, 2425, 51865, 51866, 50464, END]
    assert text.text_tokens(written) == [2425, 51865, 51866]
    assert text.decode(written[:-1]) == " Hello concordgröße"
    words = split_words([2425, 51865, 51866, END], text.decode, END, "en")
    assert [word for word, _ in words] == [" Hello", " concordgröße", "<|endoftext|>"]
    few = make_tokenizer(50364)
    assert not read_whisper_tokens(few).times
    few.add_tokens(["<|0.00|>", "<|0.02|>", "odd"])
    assert read_whisper_tokens(few).times == range(50364, 50366)
    assert 50364 not in replace(tokens, times=range(0)).symbols


UNTIMED = ["--skip_silence", "false", "--language", "de", "--device", "cpu", "--beam_size", "1"]
UNTIMED += ["--temperature_increment_on_fallback", "none"]


@pytest.mark.parametrize("vocab_size", [50364, 50368])
def test_a_vocabulary_without_timestamps(vocab_size, tmp_path, monkeypatch):
    """As in whisper.cpp 1866; 50,368 is a multiple of 16 with ids that have no token."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "whisper"
    tuned_vocabulary(folder, vocab_size, times=False)
    if vocab_size == 50364:
        for path in folder.glob("*token*"):
            path.unlink()  # OpenAI's vocabulary is the default
    model = Speech2Text.from_pretrained(str(folder), **SHORT)
    assert not model.whisper.tokens.times
    assert are_below(model(noise(0))[0][2], 50257)
    assert {*model.model.options.suppress_tokens} >= {*range(50364, vocab_size)}
    samples = noise_and_silence(40, 1)
    once = {"temperature_increment_on_fallback": None}
    for without, more in ((None, {}), (True, once), (False, once)):
        segments = [*model.transcribe(samples, without_timestamps=without, **more)]
        assert "".join(segment.text for segment in segments)
        assert any(segment.words for segment in segments) is (without is not True)
        assert all(0 <= segment.start_s <= segment.end_s <= 40 for segment in segments)
    soundfile.write(tmp_path / "a.wav", samples, 16000)
    for kind, names in {"txt": ["txt"], "all": ["txt", "srt", "json"]}.items():
        given = [str(tmp_path / "a.wav"), "--model", str(folder), "--output_format", kind]
        assert exit_status(transcribe.main, *given, "--output_dir", tmp_path / kind, *UNTIMED) == 0
        assert all((tmp_path / kind / f"a.{name}").read_text().strip() for name in names)
    assert "-->" in (tmp_path / "all" / "a.srt").read_text()


def test_a_tokenizer_that_ends_before_the_timestamps(copied):
    """As in some folders of tiny.en: the model has them, the tokenizer does not."""
    save_tokenizer_of_bytes(copied, ("de", "en", "fr"))
    exp, times = converted(copied), range(FIRST_TIME, FIRST_TIME + len(TIMES))
    for model in (
        Speech2Text.from_pretrained(str(copied), **SHORT),
        Speech2Text(asr_model_file=exp / "model.pth", **SHORT),
    ):
        assert model.whisper.tokens.times == times
        assert not {*times} & {*model.model.options.suppress_tokens}
        segments = [*model.transcribe(noise_and_silence(4, 0))]
        assert {*times} & {token for segment in segments for token in segment.tokens}
