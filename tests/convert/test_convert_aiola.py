"""aiola's checkpoints to ESPnet experiments and back: same logits, same tensors, clear errors."""

import json
import sys

import pytest
import torch
import yaml
from aiola_files import EOS, START, VOCAB_SIZE, make_aiola, save_aiola, save_tokens
from cases import cases
from huggingface_hub import save_torch_state_dict
from refusals import Calls, assert_refused, command_refused, exit_status
from safetensors.torch import load_file

from espnet_medusa.bin import convert
from espnet_medusa.convert.read_whisper import read_whisper
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.task import MedusaASRTask
from espnet_medusa.whisper.text import TextOptions

KINDS = [
    {"kind": "base_head"},
    {"kind": "base_head", "num_layers": 2, "original": True},
    {"kind": "medusa_block", "num_heads": 4},
]


@pytest.fixture
def given(tmp_path):
    """The option for the vocabulary of the models."""
    return "--token_list", save_tokens(tmp_path / "tokens.txt")


def run(*arguments):
    convert.main([*map(str, arguments)])
    return arguments[1]


def refused(capsys, *arguments):
    """Return the one-line error of a refused conversion, which leaves no files."""
    assert exit_status(convert.main, *arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if line.startswith("convert: error: ")]
    assert lines[-1] == line, "nothing follows, no traceback"
    target = arguments[1]
    assert not target.exists() and not [*target.parent.glob(f".{target.name}.*")]
    return line


def load(experiment):
    model, args = MedusaASRTask.build_model_from_file(
        str(experiment / "config.yaml"), str(experiment / "model.pth")
    )
    return model.eval(), args


@torch.no_grad()
def logits_of(model, features, tokens):
    """(K + 1, 1, L, V) of an experiment's model, the base head first."""
    frames, decoder = torch.tensor([features.size(2)]), model.decoder
    outputs = decoder.hidden_states(*model.encoder.encode(features.transpose(1, 2), frames), tokens)
    heads = torch.stack([head(outputs.head_input) for head in decoder.heads.heads])
    return torch.stack([decoder.logits(outputs.hidden), *decoder.project(heads)])


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_logits_of_every_head(tmp_path, given, options):
    aiola = make_aiola(**options)
    folder = save_aiola(tmp_path / "aiola", aiola)
    model, args = load(run(folder, tmp_path / "exp", *given))
    features = torch.randn(1, 80, 100, generator=torch.Generator().manual_seed(1))
    prefix = torch.tensor([[START, 39, 1, 2, 3, 5, 8]])
    found, expected = logits_of(model, features, prefix), aiola.logits(features, prefix)
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (model.sos, model.eos) == (START, EOS)
    assert "whisper_model" not in {**args.encoder_conf, **args.decoder_conf}
    original = model.decoder.original_last_layer
    assert (original is not None) == options.get("original", False)
    if original is not None:
        expected = aiola.whisper_layer.state_dict()
        assert all(torch.equal(original.state_dict()[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("options", KINDS, ids=str)
def test_converting_there_and_back_gives_the_same_file(tmp_path, given, options, dtype):
    aiola = make_aiola(**options)
    tensors = {name: value.to(dtype) for name, value in aiola.tensors().items()}
    folder = save_aiola(tmp_path / "aiola", aiola, tensors)
    run(folder, tmp_path / "exp", *given)
    back = run(tmp_path / "exp", tmp_path / "back", "--to", "aiola")
    found = load_file(back / "model.safetensors")
    torch.testing.assert_close(found, tensors, rtol=0, atol=0)  # of the same dtype
    for name in ("config.json", "generation_config.json"):
        theirs, ours = (json.loads((place / name).read_text()) for place in (folder, back))
        assert ours == theirs, name


def test_decode_configs_match_aiolas_decoding(tmp_path, given):
    folder = save_aiola(tmp_path / "aiola", make_aiola())
    experiment = run(folder, tmp_path / "exp", *given)
    paths = (experiment / "conf").iterdir()
    configs = {path.stem: yaml.safe_load(path.read_text()) for path in paths}
    common = {
        "search": "greedy", "suppress_tokens": [3, 5], "begin_suppress_tokens": [7],
        "forced_prefix": [39],
    }  # fmt: skip
    drafts = common | {"medusa_choices": [1, 3, 2, 1]}
    typical = {"acceptance": "typical", "typical_epsilon": 0.1, "typical_alpha": 0.4}
    assert configs == {
        "decode_baseline": common | {"draft_depth": 0},
        "decode_exact": drafts | {"acceptance": "exact"},
        "decode_typical": drafts | typical,
    }
    texts = {}
    for name, options in configs.items():
        speech2text = Speech2Text(experiment / "config.yaml", experiment / "model.pth", **options)
        generator = torch.Generator().manual_seed(0)
        [(text, _, ids, _)] = speech2text(torch.randn(16000, generator=generator))
        assert not {3, 5} & {*ids} and text.split()[0].startswith("w")
        texts[name] = text
    assert texts["decode_exact"] == texts["decode_baseline"]


def test_weights_from_other_file_formats_are_the_same(tmp_path, given, capsys):
    aiola = make_aiola(kind="medusa_block")
    tensors, experiments = aiola.tensors(), []
    for form in ("whole", "shards", "pickled"):
        folder = save_aiola(tmp_path / form, aiola)
        if form != "whole":
            (folder / "model.safetensors").unlink()
        if form == "shards":
            save_torch_state_dict(tensors, folder, max_shard_size="20KB")
            assert len([*folder.glob("*.safetensors")]) > 2
        if form == "pickled":
            torch.save(tensors, folder / "pytorch_model.bin")
        experiments.append(run(folder, tmp_path / f"exp_{form}", *given))
    whole, *others = (torch.load(folder / "model.pth") for folder in experiments)
    for other in others:
        torch.testing.assert_close(other, whole, rtol=0, atol=0)
    torch.save(Calls(sys.exit), folder / "pytorch_model.bin")  # code that must not run
    message = "not a checkpoint with weights only"
    assert message in refused(capsys, folder, tmp_path / "exp", *given)


def test_a_projection_saved_twice_must_equal_the_embedding(tmp_path, given, capsys):
    aiola = make_aiola()
    embedding = aiola.whisper_model.model.decoder.embed_tokens.weight.detach()
    name = "whisper_model.proj_out.weight"
    twice = aiola.tensors() | {name: embedding.clone()}
    run(save_aiola(tmp_path / "twice", aiola, twice), tmp_path / "a", *given)
    folder = save_aiola(tmp_path / "untied", aiola, aiola.tensors() | {name: embedding + 1})
    message = f"{name} differs from the token embedding; allowed: tied"
    assert message in refused(capsys, folder, tmp_path / "b", *given)


@cases(
    ({"medusa_heads_type": "hydra"}, "medusa_heads_type: 'hydra' is not known"),
    ({"medusa_num_heads": None}, "medusa_num_heads is missing"),
    ({"medusa_num_heads": "3"}, "medusa_num_heads: '3'; allowed: a whole number"),
    ({"medusa_num_heads": 2, "medusa_choices": None}, "medusa_heads.3.0.linear.weight is not"),
    ({"medusa_num_heads": 4}, "medusa_heads.4.0.linear.weight is missing"),
    ({"medusa_choices": [1, 0, 1, 1]}, "medusa_choices: [1, 0, 1, 1]; allowed: 1 for the"),
    ({"medusa_choices": [1, 1, 1, 1, 1]}, "at most 3 numbers"),
    ({"decoder_layers": 3}, "whisper_model.model.decoder.layers.2"),
    ({"d_model": 24}, "is (16, 16), the model's (24, 24)"),
    ({"activation_function": "relu"}, "activation_function: relu; allowed: gelu"),
    ({"eos_token_id": [1, 2]}, "eos_token_id: [1, 2]; allowed: one token id"),
    ({"generation": {"posterior_threshold": 2}}, "typical_epsilon: 2"),
    ({"generation": {"posterior_alpha": "high"}}, "posterior_alpha: 'high'; allowed: a number"),
    ({"generation": {"suppress_tokens": [1, "a"]}}, "suppress_tokens: [1, 'a']; allowed"),
)
def test_invalid_config_is_refused(changes, message, tmp_path, given, capsys):
    folder = save_aiola(tmp_path / "aiola", make_aiola(), **{"generation": {"a": 1}, **changes})
    assert message in refused(capsys, folder, tmp_path / "exp", *given)


def test_missing_sizes_come_from_the_base_model(tmp_path, given, capsys):
    aiola = make_aiola()
    aiola.whisper_model.config.save_pretrained(tmp_path / "base")
    lacking = dict.fromkeys(["encoder_attention_heads", "max_source_positions"])
    base = {"whisper_model_name": str(tmp_path / "base")}
    named = save_aiola(tmp_path / "named", aiola, **base, **lacking)
    _, args = load(run(named, tmp_path / "exp", *given))
    assert args.encoder_conf["attention_heads"] == 2
    assert args.encoder_conf["max_source_positions"] == 50
    unnamed = save_aiola(tmp_path / "unnamed", aiola, whisper_model_name=None, **lacking)
    _, args = load(run(unnamed, tmp_path / "exp2", *given, "--whisper_model", tmp_path / "base"))
    assert args.encoder_conf["attention_heads"] == 2
    line = refused(capsys, unnamed, tmp_path / "exp3", *given)
    assert "encoder_attention_heads, max_source_positions missing" in line
    assert "give --whisper_model" in line


def test_a_downloaded_model_may_not_name_a_local_folder(tmp_path, monkeypatch):
    aiola = make_aiola()
    aiola.whisper_model.config.save_pretrained(tmp_path / "base")
    changes = {"whisper_model_name": str(tmp_path / "base"), "encoder_attention_heads": None}
    named = save_aiola(tmp_path / "a", aiola, **changes)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(named))
    message = "someone/a: config.json: whisper_model_name: '.*base'"
    assert_refused(message, read_whisper, "someone/a", TextOptions())


def test_a_missing_vocabulary_and_an_existing_target_are_errors(tmp_path, given, capsys):
    folder = save_aiola(tmp_path / "aiola", make_aiola())
    line = refused(capsys, folder, tmp_path / "exp")
    assert f"vocab_size: {VOCAB_SIZE}" in line and "give --tokenizer FOLDER" in line
    short = save_tokens(tmp_path / "short.txt", 39)
    line = refused(capsys, folder, tmp_path / "exp", "--token_list", short)
    assert "39 lines, 39 different; the model has 40 tokens" in line
    (tmp_path / "there").mkdir()
    with command_refused(capsys, "exists; remove it"):
        run(folder, tmp_path / "there", *given)
    assert not [*(tmp_path / "there").iterdir()], "an existing target is not overwritten"
    # The folder's own tokenizer is used and copied.
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    experiment = run(folder, tmp_path / "first", *given)
    name = "tokenizer.json"
    (folder / name).write_bytes((experiment / "tokenizer" / name).read_bytes())
    experiment = run(folder, tmp_path / "exp")
    assert (experiment / "tokenizer" / name).read_bytes() == (folder / name).read_bytes()
    assert (experiment / "tokens.txt").read_text() == given[1].read_text()
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": "x.Y"}}')
    assert "auto_map requires code" in refused(capsys, folder, tmp_path / "exp2")
