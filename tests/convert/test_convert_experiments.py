"""Experiments of our own to aiola's format and to plain Whisper."""

import json

import torch
from aiola_files import read_aiola
from cases import cases
from experiment import make_experiment
from heads_folders import pack, with_heads
from openai_whisper import ctc_whisper
from safetensors.torch import load_file
from test_convert_aiola import load, logits_of, refused, run
from test_convert_hugging_face import logits_of_experiment
from transformers import WhisperForConditionalGeneration
from transformers_whisper import logits_of as whisper_logits

from espnet_medusa import Speech2Text
from espnet_medusa.convert.experiment import read_experiment

PREFIX = torch.tensor([[13, 1, 2, 3, 5, 8]])


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
    with caplog.at_level("WARNING"):
        run(experiment, tmp_path / "out", "--to", "aiola", "--whisper_model", "openai/whisper-tiny")
    assert "not converted, as aiola cannot store it: ctc.ctc_lo.weight" in caplog.text
    expected = logits_of(load(experiment)[0], features(), PREFIX)
    found = read_aiola(tmp_path / "out").logits(features(), PREFIX)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["whisper_model_name"] == "openai/whisper-tiny"
    assert (config["decoder_start_token_id"], config["eos_token_id"]) == (13, 13)
    assert len(config["medusa_choices"]) == 4


def test_plain_whisper_computes_the_base(tmp_path, caplog):
    experiment = experiment_with(tmp_path, "recurrent")
    run(experiment, tmp_path / "out", "--to", "hugging_face")
    assert "heads: recurrent: not written" in caplog.text
    whisper, info = WhisperForConditionalGeneration.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    expected = logits_of_experiment(experiment, features(), PREFIX)
    found = whisper_logits(whisper.eval(), features(), PREFIX)
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
