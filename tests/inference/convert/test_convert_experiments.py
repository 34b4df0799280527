"""Whisper of Hugging Face and of OpenAI to experiments; experiments to aiola's format and back."""

import json
from types import SimpleNamespace

import pytest
import torch
from aiola_files import read_aiola
from cases import cases
from experiment import NO_CTC, make_experiment, noise
from heads_folders import pack, with_heads
from openai_whisper import ctc_whisper, openai_whisper, save_openai_whisper
from safetensors.torch import load_file
from test_convert_aiola import load, refused, run
from test_convert_aiola import logits_of as aiola_logits_of
from tiny_whisper import save_whisper_of_bytes
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, WhisperForConditionalGeneration
from transformers_whisper import generate, logits_of, tiny_whisper

from espnet_medusa.data.options import read_config
from espnet_medusa.inference.convert.experiment import compact, read_experiment
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.networks.whisper.tokens import make_tokenizer, read_whisper_tokens

PREFIX = torch.tensor([[13, 1, 2, 3, 5, 8]])
WORDS = ["!", "ab", "cd", "ef", "gh", "ij", "<|startoftranscript|>", "<|endoftext|>"]


@torch.no_grad()
def logits_of_experiment(experiment, features, tokens):
    """(1, L, V)."""
    model, _ = load(experiment)
    frames = torch.tensor([features.size(2)])
    encoder_out, lengths = model.encoder.encode(features.transpose(1, 2), frames)
    return model.decoder(encoder_out, lengths, tokens, torch.tensor([tokens.size(1)]))[0]


def test_vanilla_system_decodes(tmp_path):
    whisper, tokenizer = tiny_whisper(tmp_path / "whisper"), make_tokenizer(51865)
    experiment = run(tmp_path / "whisper", tmp_path / "exp", "--language", "de")
    config = read_config(experiment / "config.yaml", "")
    assert config["preprocessor"] == "whisper"
    assert config["preprocessor_conf"] == {"language": "de", "task": "transcribe"}
    assert config["bpemodel"] == str(experiment / "tokenizer")
    options = read_config(experiment / "conf" / "decode_baseline.yaml", "") | {"maxlenratio": -12}
    speech2text = Speech2Text(experiment / "config.yaml", experiment / "model.pth", **options)
    prompt = [50258, 50261, 50359, 50363]  # start, de, transcribe, no timestamps
    [(_, _, found, _)] = speech2text(noise(0))
    assert found == generate(whisper, noise(0), prompt, read_whisper_tokens(tokenizer))
    path = experiment / "config.yaml"
    path.write_text(path.read_text().replace("window: whisper", "window: audio"))
    again = read_config(run(experiment, tmp_path / "again") / "config.yaml", "")
    assert again["preprocessor_conf"] == config["preprocessor_conf"]
    assert again["encoder_conf"] == config["encoder_conf"] | {"window": "audio"}


def test_the_prompt_is_that_of_the_generation_config(tmp_path, capsys):
    folder = save_whisper_of_bytes(tmp_path / "whisper")

    def prompt(name, *options, **fields):
        (folder / "generation_config.json").write_text(json.dumps(fields))
        config = read_config(run(folder, tmp_path / name, *options) / "config.yaml", "")
        return config["preprocessor_conf"]

    german = {"language": "de", "task": "translate"}
    for form, name in {"code": "de", "token": "<|de|>", "name": "German"}.items():
        assert prompt(form, language=name, task="translate") == german
    assert prompt("given", "--language", "fr", **german) == german | {"language": "fr"}
    assert prompt("empty", language=None) == {"language": "en", "task": "transcribe"}
    (folder / "generation_config.json").write_text('{"language": "xx"}')
    line = refused(capsys, folder, tmp_path / "out")
    assert f"{folder}: language: 'xx'; allowed: " in line and "give --language" in line
    (folder / "generation_config.json").write_text('{"language": ["de"]}')
    message = "generation_config.json: language: ['de']; allowed: one language"
    assert message in refused(capsys, folder, tmp_path / "out")


@pytest.mark.parametrize("names", [["dtype"], ["torch_dtype"], []], ids=str)
def test_a_dtype_in_config_json_is_that_of_the_written_weights(tmp_path, names):
    folder = save_whisper_of_bytes(tmp_path / "whisper")
    fields = json.loads((folder / "config.json").read_text())
    fields = {name: value for name, value in fields.items() if not name.endswith("dtype")}
    (folder / "config.json").write_text(json.dumps(fields | dict.fromkeys(names, "float16")))
    written = run(folder, tmp_path / "out", "--to", "hugging_face")
    fields = json.loads((written / "config.json").read_text())
    found = {name: value for name, value in fields.items() if name.endswith("dtype")}
    assert found == dict.fromkeys(names, "float32")


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
    folder = save_whisper_of_bytes(tmp_path / "whisper")
    target = tmp_path / "out"
    assert "language: 'xx'" in refused(capsys, folder, target, "--language", "xx")
    assert "task: 'sing'" in refused(capsys, folder, target, "--task", "sing")
    to = "--to", "hugging_face", "--language", "de"
    assert "--language: only with --to experiment" in refused(capsys, folder, target, *to)
    assert "--model_file: only with" in refused(capsys, folder, target, "--model_file", "x.pth")
    assert "nowhere.pt: no such file" in refused(capsys, tmp_path / "nowhere.pt", target)
    config = folder / "config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps(fields | {"d_model": "wide"}))
    assert "d_model" in refused(capsys, folder, target)
    config.write_text(json.dumps(fields | {"decoder_ffn_dim": 24}))
    assert "decoder.whisper.layers.0.fc1.weight" in refused(capsys, folder, target)
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


def experiment_with(tmp_path, heads, **options):
    """A random experiment; options are of heads_conf, decoder_conf's others stay."""
    conf = {"num_blocks": 2, "attention_heads": 2, "linear_units": 48, "max_target_positions": 40}
    conf |= {"heads": heads, "heads_conf": {"num_heads": 3, **options}}
    return make_experiment(tmp_path / "exp", decoder_conf=conf).folder


def features():
    return torch.randn(1, 80, 200, generator=torch.Generator().manual_seed(1))


@cases(("linear", {"base_head": True}), ("linear", {"num_layers": 2}), ("block", {}))
def test_aiolas_file_computes_the_same(heads, options, tmp_path, caplog):
    experiment = experiment_with(tmp_path, heads, **options)
    run(experiment, tmp_path / "out", "--to", "aiola", "--whisper_model", "openai/whisper-tiny")
    assert "not converted, as aiola cannot store it: ctc.ctc_lo.weight" in caplog.text
    expected = aiola_logits_of(load(experiment)[0], features(), PREFIX)
    found = read_aiola(tmp_path / "out").logits(features(), PREFIX)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["whisper_model_name"] == "openai/whisper-tiny"
    assert (config["decoder_start_token_id"], config["eos_token_id"]) == (13, 13)
    assert len(config["medusa_choices"]) == 4


def test_plain_whisper_computes_the_base(tmp_path, caplog, capsys):
    experiment = experiment_with(tmp_path, "recurrent")
    out = run(experiment, tmp_path / "out", "--to", "hugging_face")
    assert "heads: recurrent: not written" in caplog.text
    assert "heads: none" in capsys.readouterr().out
    plain = load(run(experiment, tmp_path / "plain", "--heads", "none"))[0]
    assert not plain.decoder.num_heads
    found = logits_of_experiment(tmp_path / "plain", features(), PREFIX)
    assert torch.equal(found, logits_of_experiment(experiment, features(), PREFIX))
    whisper, info = WhisperForConditionalGeneration.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    expected = logits_of_experiment(experiment, features(), PREFIX)
    found = logits_of(whisper.eval(), features(), PREFIX)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_ctc_branch_is_kept_with_heads_and_drafts_with_them(tmp_path):
    block = {"input_layer": "conv1d2", "output_size": 16, "num_blocks": 0}
    conf = {"ctc_units": 512, "ctc_block": "transformer", "ctc_block_conf": block}
    source = ctc_whisper(tmp_path / "exp", **conf).folder
    base = read_experiment(source)
    heads = pack(tmp_path / "heads", with_heads(base, "linear"), base)
    both = run(source, tmp_path / "both", "--heads", heads)
    before, after = (torch.load(folder / "model.pth") for folder in (source, both))
    branch = [name for name in before if name.startswith("ctc.")]
    assert branch and all(torch.equal(before[name], after[name]) for name in branch)
    audio = 0.1 * torch.randn(40000, generator=torch.Generator().manual_seed(1)).numpy()
    texts = []
    for folder, drafter in ((source, {"draft_depth": 0}), (both, {"drafter": "ctc+heads"})):
        speech2text = Speech2Text(
            str(folder / "config.yaml"), str(folder / "model.pth"),
            search="greedy", ctc_weight=0.0, maxlenratio=-30, **drafter,
        )  # fmt: skip
        texts.append(speech2text(audio)[0][2])
    assert texts[0] and texts[0] == texts[1]
    assert speech2text.statistics.drafted, "both draft"


@cases(
    ("recurrent", {}, "aiola", "heads: recurrent; aiola's format supports linear, block"),
    ("none", {}, "aiola", "give --to hugging_face"),
    ("linear", {}, "aiola", "give --whisper_model"),
    ("block", {"base_head": True}, "aiola", "give --drop_base_head true"),
    ("linear", {"base_head": True}, "hugging_face", "give --drop_base_head true"),
)
def test_unsupported_parts_of_a_format_are_refused(heads, options, to, message, tmp_path, capsys):
    experiment = experiment_with(tmp_path, heads, **options)
    assert message in refused(capsys, experiment, tmp_path / "out", "--to", to)
    if "drop_base_head" in message:
        given = ["--drop_base_head", "true", "--whisper_model", "base"]
        run(experiment, tmp_path / "out", "--to", to, *given)
        names = load_file(tmp_path / "out" / "model.safetensors")
        assert sum(name.startswith("medusa_heads") for name in names) in (0, 3 * 2)


def test_invalid_experiment_is_refused(tmp_path, capsys):
    experiment = experiment_with(tmp_path, "linear")
    config = experiment / "config.yaml"
    text = config.read_text()
    out = tmp_path / "out", "--to", "hugging_face"
    for old, new, message in (
        ("decoder: whisper_medusa", "decoder: transformer", "allowed: whisper_medusa"),
        ("num_heads: 3", "num_heads: 4", "decoder.heads.heads.3.layers.0.weight is missing"),
        ("max_source_positions: 100", "subsampling: 4", "subsampling: 4; allowed: 2"),
    ):
        config.write_text(text.replace(old, new))
        assert message in refused(capsys, experiment, *out)
    config.write_text(text)
    (experiment / "model.pth").rename(experiment / "3epoch.pth")
    assert "give --model_file; .pth files: 3epoch.pth" in refused(capsys, experiment, *out)
    run(experiment, *out, "--model_file", experiment / "3epoch.pth")
    assert (tmp_path / "out" / "model.safetensors").is_file()


@cases((torch.float16, 16), (torch.bfloat16, 16), (torch.float32, 32))
def test_weights_take_the_bits_that_they_need(kind, bits, tmp_path):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(8, 8, generator=generator).to(kind).float()
    assert compact(weight).dtype.itemsize * 8 == bits
    assert torch.equal(compact(weight).float(), weight)
