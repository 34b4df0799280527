"""CTranslate2 folders to experiments and back, compared with ctranslate2 if installed."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from cases import cases
from ctranslate2_folder import CONFIG, pack, save_ctranslate2, variables_of
from safetensors.torch import load_file
from test_convert_aiola import refused, run
from test_convert_experiments import experiment_with, logits_of_experiment
from tiny_whisper import save_tokenizer_of_bytes, save_whisper_of_bytes
from transformers import AutoTokenizer, WhisperForConditionalGeneration
from transformers_whisper import logits_of, tiny_whisper
from waiting import full_length

from espnet_medusa.data.options import read_config
from espnet_medusa.networks.whisper.ctranslate2_whisper import read_half
from espnet_medusa.networks.whisper.tokens import make_tokenizer, read_whisper_tokens

SIZES = {"english": (51864, 80, 3), "multilingual": (51865, 80, 2), "large-v3": (51866, 128, 4)}
FITTING = CONFIG | {"lang_ids": [258]}


@pytest.fixture(scope="module", params=["english", "large-v3", *full_length("multilingual")])
def case(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    vocab_size, mels, layers = SIZES[request.param]
    whisper = tiny_whisper(path / "hf", vocab_size, mels, 8, decoder_layers=layers)
    return save_ctranslate2(path / "ct2", whisper), whisper


@pytest.fixture(scope="module")
def converted(case):
    path = case[0].parent
    experiment = run(case[0], path / "exp")
    return experiment, run(experiment, path / "back", "--to", "hugging_face")


def assert_the_same(whisper, folder, experiment, back):
    """Compare an experiment, and a folder converted from it, with a Whisper and its ``folder``."""
    vocab_size, mels = whisper.config.vocab_size, whisper.config.num_mel_bins
    features = torch.randn(1, mels, 3000, generator=torch.Generator().manual_seed(2))
    tokens = torch.tensor([[50258, 50363, 11, 22, 33]])
    expected = logits_of(whisper, features, tokens)
    again = logits_of(WhisperForConditionalGeneration.from_pretrained(back), features, tokens)
    found = logits_of_experiment(experiment, features, tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-5)
    weights = [load_file(place / "model.safetensors") for place in (folder, back)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    config, tokenizer = read_config(experiment / "config.yaml", ""), make_tokenizer(vocab_size)
    vocabulary = tokenizer.get_vocab()
    assert config["token_list"] == sorted(vocabulary, key=vocabulary.get)
    assert config["preprocessor"] == "whisper"
    assert AutoTokenizer.from_pretrained(back)("a b")["input_ids"] == tokenizer("a b")["input_ids"]


def test_experiment_and_hugging_face_compute_the_same(case, converted):
    (folder, whisper), (experiment, back) = case, converted
    assert_the_same(whisper, folder.parent / "hf", experiment, back)


@pytest.mark.parametrize("name", ["large-v3", *full_length("english", "multilingual")])
def test_hugging_face_there_and_back_computes_the_same(name, tmp_path):
    vocab_size, mels, layers = SIZES[name]
    whisper = tiny_whisper(tmp_path / "hf", vocab_size, mels, 8, decoder_layers=layers)
    experiment = run(tmp_path / "hf", tmp_path / "exp")
    back = run(experiment, tmp_path / "back", "--to", "hugging_face")
    assert_the_same(whisper, tmp_path / "hf", experiment, back)


def test_fields_of_its_config_are_kept(case, converted):
    (_, whisper), (experiment, back) = case, converted
    options = read_config(experiment / "conf" / "decode_baseline.yaml", "")
    assert options["suppress_tokens"] == CONFIG["suppress_ids"]
    assert options["begin_suppress_tokens"] == CONFIG["suppress_ids_begin"]
    generation = json.loads((back / "generation_config.json").read_text())
    assert generation["alignment_heads"] == CONFIG["alignment_heads"]
    assert generation["suppress_tokens"] == CONFIG["suppress_ids"]
    english = whisper.config.vocab_size == 51864
    assert generation.get("lang_to_id") == (None if english else {"<|en|>": 50259, "<|de|>": 50261})
    assert generation["is_multilingual"] is not english


def test_missing_fields_come_from_the_tokens(case, tmp_path):
    source, whisper = case
    folder = tmp_path / "ct2"
    folder.mkdir()
    (folder / "model.bin").symlink_to(source / "model.bin")
    (folder / "config.json").write_text(json.dumps(dict.fromkeys(CONFIG)))
    features = {"feature_size": whisper.config.num_mel_bins, "dither": 0.5}
    (folder / "preprocessor_config.json").write_text(json.dumps(features))
    back = run(folder, tmp_path / "back", "--to", "hugging_face")
    generation = json.loads((back / "generation_config.json").read_text())
    tokens = read_whisper_tokens(make_tokenizer(whisper.config.vocab_size))
    assert generation["suppress_tokens"] == tokens.suppressed
    assert len(generation.get("lang_to_id", {})) == len(tokens.languages)
    assert "alignment_heads" not in generation
    assert json.loads((back / "preprocessor_config.json").read_text()) == features


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder whose files the tests damage one by one."""
    path = tmp_path_factory.mktemp("spoiled")
    tokens = save_tokenizer_of_bytes(path / "tokenizer")
    whisper = tiny_whisper(path / "hf", len(tokens), hidden_size=8)
    shutil.copy(path / "tokenizer" / "tokenizer.json", save_ctranslate2(path / "ct2", whisper))
    return path / "ct2"


@cases(
    ("suppress_ids", [1, 265]), ("suppress_ids", 7), ("suppress_ids_begin", [-1]),
    ("suppress_ids_begin", [True]), ("lang_ids", ["<|en|>"]),
    ("lang_ids", {"en": 50259} | {str(number): number for number in range(60)}),
)  # fmt: skip
def test_invalid_config_is_refused(name, value, folder, tmp_path, capsys):
    (folder / "config.json").write_text(json.dumps(FITTING | {name: value}))
    line = refused(capsys, folder, tmp_path / "out")
    assert f"config.json: {name}: " in line and "allowed: " in line and len(line) < 400


def test_damaged_files(folder, tmp_path, capsys):
    config, tokenizer = folder / "config.json", folder / "tokenizer.json"
    target = tmp_path / "out"
    for text, message in (("[1", "JSON"), ("[" * 100000, "JSON"), ("[1]", "a JSON object")):
        config.write_text(text)
        assert f"config.json: is not {message}" in refused(capsys, folder, target)
    config.write_text(json.dumps(FITTING))
    for part in (tokenizer.read_bytes()[:1000], b"", b"{}"):
        tokenizer.write_bytes(part)
        assert f"tokenizer '{folder}'" in refused(capsys, folder, target)
    tokens = save_tokenizer_of_bytes(folder, ("de", "en", "fr"))
    assert f"tokenizer of {len(tokens)} tokens" in refused(capsys, folder, target)
    config.unlink()
    assert "has no config.json" in refused(capsys, folder, target)


def test_impossible_export_is_refused(tmp_path, capsys, monkeypatch):
    save_whisper_of_bytes(tmp_path / "hf")
    target = tmp_path / "out"
    message = "--dtype int8: only with --to ctranslate2"
    assert message in refused(capsys, tmp_path / "hf", target, "--dtype", "int8")
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    there = target, "--to", "ctranslate2"
    message = "pip install 'espnet_medusa[ctranslate2]'"
    assert message in refused(capsys, tmp_path / "hf", *there)
    generation = tmp_path / "hf" / "generation_config.json"
    fields = json.loads(generation.read_text())
    for name, value in {"suppress_tokens": [-1], "lang_to_id": [None]}.items():
        generation.write_text(json.dumps(fields | {name: value}))
        line = refused(capsys, tmp_path / "hf", *there)
        assert "generation_config.json: " in line and "allowed: a list of token ids" in line
    experiment = experiment_with(tmp_path, "linear", base_head=True)
    assert "give --drop_base_head true" in refused(capsys, experiment, *there)
    line = refused(capsys, experiment, *there, "--drop_base_head", "true")
    assert "lacks Whisper's symbols" in line and "give --to hugging_face" in line


@pytest.fixture
def ctranslate2():
    return pytest.importorskip("ctranslate2", reason="pip install 'espnet_medusa[ctranslate2]'")


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int8"])
def test_tests_and_ctranslate2_write_the_same_file(ctranslate2, case, tmp_path, kind):
    folder, whisper = case
    written = run(folder, tmp_path / "out", "--to", "ctranslate2", "--dtype", kind)
    assert (written / "model.bin").read_bytes() == pack(variables_of(whisper, kind))


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_converting_there_and_back_is_bitwise_equal(ctranslate2, case, tmp_path, kind):
    _, whisper = case
    source = save_ctranslate2(tmp_path / "source", whisper, kind)
    experiment = run(source, tmp_path / "exp")
    there = run(experiment, tmp_path / "there", "--to", "ctranslate2", "--dtype", kind)
    again = run(there, tmp_path / "again")
    weights, found = (torch.load(place / "model.pth") for place in (experiment, again))
    torch.testing.assert_close(found, weights, rtol=0, atol=0)
    assert (there / "model.bin").read_bytes() == (source / "model.bin").read_bytes()
    said = json.loads((there / "config.json").read_text())
    assert said == CONFIG | ({"lang_ids": []} if whisper.config.vocab_size == 51864 else {})
    for half in ("encoder", "decoder"):
        read = read_half(there / "model.bin", half)
        assert all(torch.equal(read[name], weights[f"{half}.whisper.{name}"]) for name in read)
    names = json.loads((there / "vocabulary.json").read_text())
    assert names == read_config(again / "config.yaml", "")["token_list"]


def test_ctranslate2_writes_transformers_tokens(ctranslate2, case, converted, tmp_path):
    written = run(converted[0], tmp_path / "out", "--to", "ctranslate2")
    whisper = case[1]
    model = ctranslate2.models.Whisper(str(written), compute_type="float32", intra_threads=1)
    english = whisper.config.vocab_size == 51864
    assert model.is_multilingual is not english
    assert model.n_mels == whisper.config.num_mel_bins
    features = torch.randn(1, model.n_mels, 3000, generator=torch.Generator().manual_seed(2))
    prompt = [50257, 50362] if english else [50258, 50261, 50360 - (model.n_mels == 80), 50363]
    if model.n_mels == 128:
        prompt[-1] += 1
    given = ctranslate2.StorageView.from_array(features.numpy())
    options = {"beam_size": 1, "max_length": 24, "suppress_blank": True, "suppress_tokens": [-1]}
    [found] = model.generate(given, [prompt], **options)
    tokens = torch.tensor([prompt])
    with torch.no_grad():
        encoder_out = whisper.model.encoder(features).last_hidden_state
        np.testing.assert_allclose(
            np.array(model.encode(given)), encoder_out.numpy(), rtol=0, atol=1e-4
        )
        for _ in range(12):
            scores = whisper(encoder_outputs=(encoder_out,), decoder_input_ids=tokens).logits[0, -1]
            scores[CONFIG["suppress_ids"]] = -torch.inf
            if tokens.size(1) == len(prompt):
                scores[CONFIG["suppress_ids_begin"]] = -torch.inf
            tokens = torch.cat([tokens, scores.argmax()[None, None]], dim=1)
    ids = found.sequences_ids[0]
    assert ids and ids == tokens[0, len(prompt) :].tolist()[: len(ids)]
