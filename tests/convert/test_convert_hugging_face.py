"""Plain Whisper of Hugging Face and of OpenAI: to experiments and back, in ESPnet's options."""

import json

import pytest
import torch
from cases import cases
from experiment import NO_CTC, make_experiment, noise
from openai_whisper import openai_whisper, save_openai_whisper
from safetensors.torch import load_file
from test_convert_aiola import load, refused, run
from tiny_whisper import save_tiny_whisper
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, WhisperFeatureExtractor
from transformers import WhisperForConditionalGeneration as Whisper

from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.options import read_config
from espnet_medusa.whisper.tokens import make_tokenizer


def logits_of_experiment(experiment, features, tokens):
    """(1, L, V)."""
    model, _ = load(experiment)
    with torch.no_grad():
        frames = torch.tensor([features.size(2)])
        memory, lengths = model.encoder.encode(features.transpose(1, 2), frames)
        return model.decoder(memory, lengths, tokens, torch.tensor([tokens.size(1)]))[0]


@cases((51865, 80, 2), (51866, 128, 4), (51864, 80, 1))
def test_there_and_back_computes_the_same(vocab_size, num_mel_bins, decoder_layers, tmp_path):
    sizes = {"num_mel_bins": num_mel_bins, "decoder_layers": decoder_layers, "hidden_size": 8}
    folder = save_tiny_whisper(tmp_path / "whisper", vocab_size, **sizes)
    experiment = run(folder, tmp_path / "exp")
    back = run(experiment, tmp_path / "back", "--to", "hugging_face")
    features = torch.randn(1, num_mel_bins, 3000, generator=torch.Generator().manual_seed(2))
    tokens = torch.tensor([[50258, 50363, 11, 22, 33]])
    found = logits_of_experiment(experiment, features, tokens)
    for place in (folder, back):
        whisper = Whisper.from_pretrained(place).eval()
        with torch.no_grad():
            expected = whisper(features, decoder_input_ids=tokens).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    theirs, ours = (load_file(place / "model.safetensors") for place in (folder, back))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    tokenizer = AutoTokenizer.from_pretrained(back)
    assert tokenizer("a b")["input_ids"] == make_tokenizer(vocab_size)("a b")["input_ids"]


def test_vanilla_system_decodes(tmp_path):
    folder = save_tiny_whisper(tmp_path / "whisper")
    experiment = run(folder, tmp_path / "exp", "--language", "de")
    config = read_config(experiment / "config.yaml", "")
    assert config["preprocessor"] == "whisper"
    assert config["preprocessor_conf"] == {"language": "de", "task": "transcribe"}
    assert config["bpemodel"] == str(experiment / "tokenizer")
    vocabulary = make_tokenizer(51865).get_vocab()
    assert config["token_list"] == sorted(vocabulary, key=vocabulary.get)
    options = read_config(experiment / "conf" / "decode_baseline.yaml", "")
    speech2text = Speech2Text(
        experiment / "config.yaml", experiment / "model.pth", maxlenratio=-12, **options
    )
    speech = noise(0)
    [(_, _, found, _)] = speech2text(speech)
    features = WhisperFeatureExtractor()(speech, sampling_rate=16000, return_tensors="pt")
    whisper = Whisper.from_pretrained(folder).eval()
    blocked = speech2text.search.strategy.scoring.constraints.blocked
    prompt = torch.tensor([[50258, 50261, 50359, 50363]])  # start, de, transcribe, no timestamps
    with torch.no_grad():
        for _ in range(12):
            logits = whisper(features.input_features, decoder_input_ids=prompt).logits[0, -1]
            row = 0 if prompt.size(1) == 4 else -1  # the first token, or a later one
            logits[blocked[row].nonzero().flatten()] = -torch.inf
            prompt = torch.cat([prompt, logits.argmax()[None, None]], dim=1)
    assert found == prompt[0, 4:].tolist()


def test_openai_file_computes_the_same(tmp_path):
    model = openai_whisper(4)
    experiment = run(save_openai_whisper(model, tmp_path / "base.pt"), tmp_path / "exp")
    features = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(2))
    tokens = torch.tensor([[50258, 11, 22]])
    with torch.no_grad():
        expected = model(features, tokens)
    found = logits_of_experiment(experiment, features, tokens)
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


# Network and tokenizer of a folder, named by ESPnet's options

WORDS = ["!", "ab", "cd", "ef", "gh", "ij", "<|startoftranscript|>", "<|endoftext|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("whisper")
    save_tiny_whisper(path, len(WORDS), seed=3, max_target_positions=30)
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="!"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, additional_special_tokens=WORDS[6:]
    ).save_pretrained(path)
    return path


@pytest.mark.parametrize("draft_depth", [0, None])
def test_greedy_text_is_transformers_own(folder, tmp_path, draft_depth):
    weights = {"whisper_model": str(folder)}
    experiment = make_experiment(
        tmp_path / "exp", tokens=WORDS, keep_weights=True, encoder_conf=weights,
        decoder_conf=weights | {"heads": "linear", "heads_conf": {"num_heads": 3}},
        model_conf=NO_CTC | {"sym_sos": WORDS[6], "sym_eos": WORDS[7]},
        token_type="hugging_face", bpemodel=str(folder),
    )  # fmt: skip
    whisper = Whisper.from_pretrained(folder).eval()
    whisper.generation_config.update(decoder_start_token_id=6, eos_token_id=7, pad_token_id=7)
    options = {"search": "greedy", "draft_depth": draft_depth, "maxlenratio": -20}
    speech2text = Speech2Text(experiment.config, experiment.model, **options)
    for seed in range(3):
        speech = noise(seed)
        features = WhisperFeatureExtractor()(speech, sampling_rate=16000, return_tensors="pt")
        expected = whisper.generate(
            features.input_features, max_new_tokens=20, do_sample=False, num_beams=1,
            suppress_tokens=None, begin_suppress_tokens=None,
        )[0].tolist()  # fmt: skip
        expected = [token for token in expected if token not in (6, 7)]
        [(text, tokens, token_int, _)] = speech2text(speech)
        assert token_int == expected
        assert tokens == [WORDS[token] for token in expected]
        assert text == " ".join(tokens), "id 0 is a token here, not a blank"
