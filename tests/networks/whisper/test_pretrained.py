"""Pretrained Whisper models in every format, against transformers with the same weights."""

import json
import re
import reprlib
import shutil
from dataclasses import fields

import numpy as np
import pytest
import torch
from experiment import noise
from huggingface_hub import save_torch_state_dict
from openai_whisper import openai_whisper, save_openai_whisper
from refusals import Calls, assert_refused, refused, refuses
from safetensors.torch import load_file
from tiny_whisper import read_whisper_experiment, save_tiny_whisper, whisper_experiment
from transformers_whisper import features_of, generate, logits_of, tiny_whisper
from whisper.model import ModelDimensions

from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.whisper.pretrained import DECODER, ENCODER, open_whisper
from espnet_medusa.networks.whisper.tokens import make_tokenizer, read_whisper_tokens
from espnet_medusa.networks.whisper_decoder import WhisperMedusaDecoder
from espnet_medusa.networks.whisper_encoder import HFWhisperEncoder

KINDS = {
    "english": {"vocab_size": 51864},
    "large-v3": {"vocab_size": 51866, "num_mel_bins": 128},
    "turbo": {"encoder_layers": 3, "decoder_layers": 4},
}


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, tiny_whisper(folder, **KINDS[request.param])


def logits(folder, speech: np.ndarray, tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    encoder = HFWhisperEncoder(whisper_model=str(folder)).eval()
    hidden_size = encoder.output_size()
    decoder = WhisperMedusaDecoder(vocab_size, hidden_size, whisper_model=str(folder)).eval()
    encoder_out, frames, _ = encoder(torch.tensor(speech)[None], torch.tensor([len(speech)]))
    return decoder(encoder_out, frames, tokens, torch.tensor([tokens.size(1)]))[0]


def test_logits_equal_transformers(case, no_gradients):
    folder, whisper = case
    config = whisper.config
    tokens = torch.randint(config.vocab_size, (1, 12))
    expected = logits_of(whisper, features_of(noise(1), config.num_mel_bins), tokens)
    ours = logits(folder, noise(1), tokens, config.vocab_size)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


def test_logits_of_an_openai_file_equal_openais(tmp_path, no_gradients):
    """With the values of float16, as OpenAI saves its own models."""
    model = openai_whisper(0, text_context=448)
    model.load_state_dict({name: value.half() for name, value in model.state_dict().items()})
    save_openai_whisper(model, tmp_path / "small.pt")
    tokens = torch.randint(51865, (1, 9))
    expected = model.decoder(tokens, model.encoder(features_of(noise(2))))
    ours = logits(tmp_path / "small.pt", noise(2), tokens, 51865)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_shards_have_the_same_weights(case, tmp_path):
    folder, whisper = case
    whisper.save_pretrained(tmp_path, max_shard_size="1MB")
    shards, whole = open_whisper(str(tmp_path)), open_whisper(str(folder))
    assert len(shards.files) > 1
    for half in (ENCODER, DECODER):
        weights, expected = dict(shards.weights(half)), dict(whole.weights(half))
        torch.testing.assert_close(weights, expected, rtol=0, atol=0)


def test_bad_sources_are_one_line(tmp_path, capsys):
    folder = save_tiny_whisper(tmp_path / "whisper", 40)

    def refuse(path, *message):
        with refused(*message):
            open_whisper(str(path)).weights(DECODER)

    refuse(tmp_path / "nowhere", "has no config.json")
    refuse(tmp_path / "none.pt", "none.pt: no such file")
    torch.save({"dims": {}, "model_state_dict": {}}, tmp_path / "odd.pt")
    refuse(tmp_path / "odd.pt", "has no 'dims', unlike OpenAI's")
    torch.save(Calls(print, "ran code"), tmp_path / "evil.pt")
    refuse(tmp_path / "evil.pt", "not a checkpoint with weights only")
    assert "ran code" not in capsys.readouterr().out
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refuse(folder, "model.safetensors", "fetch it again")
    (folder / "model.safetensors").unlink()
    refuse(folder, "lacks model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    refuse(folder, "model_type is not whisper")
    (folder / "config.json").write_text("[" * 100_000)
    refuse(folder, "config.json: is not JSON")


@pytest.mark.parametrize("shard_size", ["1GB", "20KB", None], ids=["whole", "shards", "pickled"])
def test_an_untied_projection_is_refused(tmp_path, shard_size):
    folder = save_tiny_whisper(tmp_path / "whisper", 40)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()

    def read(projection):
        stored = tensors | {"proj_out.weight": projection}
        if shard_size is None:
            torch.save(stored, folder / "pytorch_model.bin")
        else:
            save_torch_state_dict(stored, folder, max_shard_size=shard_size)
        return open_whisper(str(folder)).weights(DECODER)

    embedding = tensors["model.decoder.embed_tokens.weight"]
    assert "proj_out.weight" not in read(embedding.clone())
    assert_refused("proj_out.weight differs from the token embedding", read, embedding + 1)


@refuses(
    ("encoder_layers", 10**9, "allowed: 1 to 1000"),
    ("vocab_size", -1, "allowed: 1 to"),
    ("d_model", "32", "d_model: '32'; allowed"),
    ("d_model", None, "d_model: None; allowed"),
    ("d_model", 2, "d_model: 2; allowed: an even number, 4 or more"),
    ("d_model", 33, "d_model: 33; allowed: an even number"),
    ("decoder_attention_heads", 5, "5; allowed: divisors of d_model, 32"),
    ("decoder_ffn_dim", 2.5, "2.5; allowed"),
    ("dropout", "much", "config.json: .*dropout"),
    ("id2label", [1], "config.json: "),
)
def test_impossible_sizes_are_refused(name, value, tmp_path):
    folder = save_tiny_whisper(tmp_path / "whisper", 40)
    config = json.loads((folder / "config.json").read_text()) | {name: value}
    (folder / "config.json").write_text(json.dumps(config))
    open_whisper(str(folder))


@pytest.mark.parametrize(
    "dims", [{"n_text_layer": 10**9}, {"n_vocab": "x"}, {"n_audio_state": []}, {"n_mels": True}]
)
def test_impossible_dims_are_refused(tmp_path, dims):
    names = [field.name for field in fields(ModelDimensions)]
    state = {"decoder.ln.weight": torch.ones(4)}
    checkpoint = {"dims": dict.fromkeys(names, 4), "model_state_dict": state}
    torch.save(checkpoint, tmp_path / "a.pt")
    assert open_whisper(str(tmp_path / "a.pt")).config.d_model == 4
    torch.save(checkpoint | {"dims": checkpoint["dims"] | dims}, tmp_path / "a.pt")
    assert_refused("a.pt': dims: .*; allowed: 1 to", open_whisper, str(tmp_path / "a.pt"))


@pytest.mark.parametrize(
    "file",
    ["/etc/passwd", "../model.safetensors", "a/b.safetensors", "model.bin", "..", 5, None]
    + [f"{'a' * 300}.safetensors", "\ud800.safetensors"],
)
def test_an_index_refers_only_to_files_in_its_folder(tmp_path, file):
    folder = save_tiny_whisper(tmp_path / "whisper", 40)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert open_whisper(str(folder)).weights(DECODER)
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": file}}))
    message = f"index.json: weight_map: {re.escape(reprlib.repr(file))}; allowed"
    assert_refused(message, open_whisper, str(folder))
    for text in ("{}", '{"weight_map": []}', "[]", "{"):
        index.write_text(text)
        assert_refused("index.json: .*fetch it again", open_whisper, str(folder))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """An experiment of a random multilingual Whisper, read after its folder is removed."""
    path = tmp_path_factory.mktemp("multilingual")
    folder = path / "whisper"
    whisper = tiny_whisper(folder, seed=5)
    made = whisper_experiment(path, folder, heads="linear", heads_conf={"num_heads": 3})
    shutil.rmtree(folder)
    return read_whisper_experiment(made), whisper, read_whisper_tokens(make_tokenizer(51865))


def load(trained, **options) -> Speech2Text:
    return Speech2Text(trained=trained, search="greedy", maxlenratio=-12, **options)


def test_greedy_text_equals_transformers_in_each_language(experiment):
    made, whisper, tokens = experiment
    speeches = [noise(seed) for seed in range(3)]
    languages = [None, "fr", "en"]
    for depth in (0, None):
        decodings = load(made, draft_depth=depth).decode(speeches, languages)
        for speech, language, decoding in zip(speeches, languages, decodings, strict=True):
            prompt = tokens.prompt(language or "de")
            assert decoding.results[0][2] == generate(whisper, speech, prompt, tokens)
            assert decoding.results[0][3].yseq.tolist()[: len(prompt)] == prompt


def test_english_only_models_have_a_language(tmp_path):
    whisper = save_tiny_whisper(tmp_path, vocab_size=51864, hidden_size=8)
    for language in None, "detect", "en":
        options = {"search": "greedy", "maxlenratio": -4, "language": language}
        english = Speech2Text.from_pretrained(str(whisper), **options)
        assert english.decode([noise(0)])[0].language == "en"
        assert english.whisper.choose_languages([None, "detect"], None) == ["en", "en"]


def test_detected_language_is_the_most_probable_one(experiment):
    made, whisper, tokens = experiment
    speech = noise(7)
    scores = logits_of(whisper, features_of(speech), torch.tensor([[tokens.start]]))[0, -1]
    best = max(tokens.languages, key=lambda code: scores[tokens.languages[code]])
    decodings = load(made, language="detect").decode([speech, speech], [None, "fr"])
    languages = [decoding.results[0][3].yseq[1].item() for decoding in decodings]
    assert languages == [tokens.languages[best], tokens.languages["fr"]]
    assert_refused("language: 'klingon'; allowed: detect", load, made, language="klingon")
