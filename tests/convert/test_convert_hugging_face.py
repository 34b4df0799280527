"""Plain Whisper of Hugging Face and of OpenAI: to experiments and back, in ESPnet's options."""

import json
from types import SimpleNamespace

import pytest
import torch
from experiment import NO_CTC, make_experiment, noise
from openai_whisper import openai_whisper, save_openai_whisper
from test_convert_aiola import load, refused, run
from tiny_whisper import save_tiny_whisper
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers_whisper import generate, tiny_whisper

from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.options import read_config
from espnet_medusa.whisper.tokens import make_tokenizer, read_whisper_tokens

WORDS = ["!", "ab", "cd", "ef", "gh", "ij", "<|startoftranscript|>", "<|endoftext|>"]


@torch.no_grad()
def logits_of_experiment(experiment, features, tokens):
    """(1, L, V)."""
    model, _ = load(experiment)
    frames = torch.tensor([features.size(2)])
    memory, lengths = model.encoder.encode(features.transpose(1, 2), frames)
    return model.decoder(memory, lengths, tokens, torch.tensor([tokens.size(1)]))[0]


def test_vanilla_system_decodes(tmp_path):
    whisper, tokenizer = tiny_whisper(tmp_path / "whisper"), make_tokenizer(51865)
    experiment = run(tmp_path / "whisper", tmp_path / "exp", "--language", "de")
    config = read_config(experiment / "config.yaml", "")
    assert config["preprocessor"] == "whisper"
    assert config["preprocessor_conf"] == {"language": "de", "task": "transcribe"}
    assert config["bpemodel"] == str(experiment / "tokenizer")
    options = read_config(experiment / "conf" / "decode_baseline.yaml", "")
    speech2text = Speech2Text(
        experiment / "config.yaml", experiment / "model.pth", maxlenratio=-12, **options
    )
    prompt = [50258, 50261, 50359, 50363]  # start, de, transcribe, no timestamps
    [(_, _, found, _)] = speech2text(noise(0))
    assert found == generate(whisper, noise(0), prompt, read_whisper_tokens(tokenizer))


def test_openai_file_computes_the_same(tmp_path, no_gradients):
    model = openai_whisper(4)
    experiment = run(save_openai_whisper(model, tmp_path / "base.pt"), tmp_path / "exp")
    features = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(2))
    tokens = torch.tensor([[50258, 11, 22]])
    found, expected = logits_of_experiment(experiment, features, tokens), model(features, tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    back = run(experiment, tmp_path / "back", "--to", "hugging_face")
    generation = json.loads((back / "generation_config.json").read_text())
    assert generation["lang_to_id"]["<|de|>"] == 50261
    assert (generation["no_timestamps_token_id"], generation["eos_token_id"]) == (50363, 50257)
    assert 50258 in generation["suppress_tokens"] and 220 in generation["begin_suppress_tokens"]


def test_unsupported_models_are_refused(tmp_path, capsys):
    folder = save_tiny_whisper(tmp_path / "whisper", hidden_size=8)
    target = tmp_path / "out"
    for option, value, message in (
        ("--language", "xx", "language: 'xx'"),
        ("--task", "sing", "task: 'sing'"),
        ("--model_file", "x.pth", "--model_file: only with"),
    ):
        assert message in refused(capsys, folder, target, option, value)
    assert "nowhere.pt: no such file" in refused(capsys, tmp_path / "nowhere.pt", target)
    config = folder / "config.json"
    fields = json.loads(config.read_text())
    for name, value, message in (
        ("d_model", "wide", "d_model"),
        ("decoder_ffn_dim", 24, "decoder.whisper.layers.0.fc1.weight"),
    ):
        config.write_text(json.dumps(fields | {name: value}))
        assert message in refused(capsys, folder, target)
    (folder / "model.safetensors").write_bytes(b"no tensors")
    config.write_text(json.dumps(fields))
    assert "model.safetensors" in refused(capsys, folder, target)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A folder with network and tokenizer, for ESPnet's options, and transformers' model of it."""
    path = tmp_path_factory.mktemp("whisper")
    whisper = tiny_whisper(path, len(WORDS), seed=3, max_target_positions=30)
    whisper.generation_config.update(decoder_start_token_id=6, eos_token_id=7, pad_token_id=7)
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, additional_special_tokens=WORDS[6:]
    ).save_pretrained(path)
    return path, whisper


@pytest.mark.parametrize("draft_depth", [0, None])
def test_greedy_text_is_transformers_own(case, tmp_path, draft_depth):
    folder, whisper = case
    weights = {"whisper_model": str(folder)}
    experiment = make_experiment(
        tmp_path / "exp", tokens=WORDS, keep_weights=True, encoder_conf=weights,
        decoder_conf=weights | {"heads": "linear", "heads_conf": {"num_heads": 3}},
        model_conf=NO_CTC | {"sym_sos": WORDS[6], "sym_eos": WORDS[7]},
        token_type="hugging_face", bpemodel=str(folder),
    )  # fmt: skip
    options = {"search": "greedy", "draft_depth": draft_depth, "maxlenratio": -20}
    speech2text = Speech2Text(experiment.config, experiment.model, **options)
    rules = SimpleNamespace(end=7, suppressed=None, begin_suppressed=None)
    for seed in range(3):
        expected = generate(whisper, noise(seed), [6], rules, 20)
        [(text, tokens, token_int, _)] = speech2text(noise(seed))
        assert token_int == expected
        assert tokens == [WORDS[token] for token in expected]
        assert text == " ".join(tokens), "id 0 is a token here, not a blank"
