"""A pretrained Whisper in Speech2Text and the commands; how it is built and weights are loaded."""

import copy
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import cases
from espnet2.tasks.asr import ASRTask
from experiment import DECODER, NO_CTC, TOKENS, noise, training_config, write_corpus
from heads_folders import pack, with_heads, write_sources
from refusals import assert_refused, command_refused
from safetensors.torch import load_file
from tiny_whisper import BYTES, save_whisper_of_bytes

from espnet_medusa import Speech2Text
from espnet_medusa.bin import asr_inference, convert, stage
from espnet_medusa.data.options import read_config
from espnet_medusa.inference.convert.experiment import read_experiment
from espnet_medusa.inference.convert.read_whisper import read_whisper
from espnet_medusa.inference.experiment import (
    NoInitialization,
    find_own_files,
    open_whisper_model,
    put_weights,
)
from espnet_medusa.inference.whisper_model import build_whisper_model, can_build_without_task
from espnet_medusa.networks.whisper.pretrained import is_whisper
from espnet_medusa.networks.whisper.text import TextOptions
from espnet_medusa.networks.whisper.tokens import TIMESTAMPS

SHORT = {"search": "greedy", "maxlenratio": -12}
DRAFT_CONF = {"greedy": {"draft_depth": 2, "draft_vocab_size": 30}, "beam": {"draft_depth": 0}}
CONFIG = {
    **training_config(model_conf=NO_CTC), "token_list": TOKENS, "init": None, "ctc_conf": {},
    "specaug": None, "frontend_conf": {}, "normalize_conf": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    path = tmp_path_factory.mktemp("case")
    whisper = save_whisper_of_bytes(path / "whisper")
    base = read_whisper(str(whisper), TextOptions())
    pack(path / "shipped" / "tiniest", with_heads(base, "recurrent"), base, draft_conf=DRAFT_CONF)
    return whisper, path / "shipped"


def test_heads_draft_and_the_text_is_the_same(case, caplog, tmp_path, monkeypatch):
    whisper, shipped = case
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    caplog.set_level("INFO", "espnet_medusa")
    plain = Speech2Text.from_pretrained(str(whisper), heads="none", **SHORT)
    assert plain.asr_model.decoder.num_heads == 0 and not caplog.messages.count("tiniest")
    drafted = Speech2Text.from_pretrained(str(whisper), heads=str(shipped / "tiniest"), **SHORT)
    assert any(line.startswith("tiniest: recurrent heads of") for line in caplog.messages)
    assert plain(noise(0))[0][0] == drafted(noise(0))[0][0] != ""
    assert plain.statistics.drafted == []
    german, detected = drafted.decode([noise(0)] * 2, ["de", "detect"])
    assert german.language == "de" and detected.language in drafted.whisper.tokens.languages
    assert len(drafted.statistics.drafted) == 2, "the card's depth, not the number of heads"
    assert not [*tmp_path.iterdir()], "the model is built in memory"


def test_bad_arrays_and_arguments_are_refused(case):
    model = Speech2Text.from_pretrained(str(case[0]), heads="none", **SHORT)
    for speech, message in (
        (np.stack(2 * [noise(0)], 1), r"has shape \(\d+, 2\); allowed: \(samples,\)"),
        ((noise(0) * 32767).astype("int16"), "speech: torch.int16; allowed: floats"),
        ("a.flac", "speech: 'a.flac'; allowed: samples; for files: espnet_medusa.transcribe"),
        (Path("a.flac"), "speech: 'a.flac'; allowed: samples"),
        (noise(0) / 0, "speech: has NaN or infinite values"),
        (noise(0) * 32768, r"an amplitude of [1-9]\d{3,}.*; allowed: samples in \[-1, 1\]; divide"),
    ):
        assert_refused(message, model, speech)
        for skip in (False, True):
            assert_refused(message, model.transcribe, speech, skip_silence=skip)
    for size, message in ((0, "batch_size: 0 is too small"), ("8", "batch_size: '8'; allowed")):
        assert_refused(message, model.transcribe, noise(0), batch_size=size)
    assert_refused("languages: 1; allowed: 2", model.decode, [noise(0)] * 2, ["en"])
    assert model.decode([]) == []


@pytest.mark.parametrize("has_timestamps", [True, False])
def test_timestamps_are_not_text(tmp_path, has_timestamps):
    exp = tmp_path / "exp"
    whisper = save_whisper_of_bytes(tmp_path / "whisper", seed=2, timestamps=True)
    convert.main([str(whisper), str(exp), "--heads", "none"])
    file = exp / "tokenizer" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    first = next(one["id"] for one in tokenizer["added_tokens"] if one["content"] == TIMESTAMPS[0])
    for token in tokenizer["added_tokens"]:  # as in openai/whisper-base
        token["special"] = token["id"] < first
    if not has_timestamps:  # as in some folders of tiny.en
        tokenizer["added_tokens"] = [one for one in tokenizer["added_tokens"] if one["special"]]
    file.write_text(json.dumps(tokenizer))
    options = {"suppress_tokens": [*({*range(first)} - {BYTES})], "begin_suppress_tokens": [BYTES]}
    model = Speech2Text(asr_model_file=exp / "model.pth", trace=True, **SHORT, **options)
    text, pieces, ids, _ = model(noise(0))[0]
    assert text == "" and ids and min(ids) >= first
    assert len(pieces) == len(ids) and pieces[0].startswith("<|")


def test_an_experiment_opens_in_any_folder(case, tmp_path, in_folder, monkeypatch):
    convert.main([str(case[0]), "exp/tiny", "--heads", "none"])
    assert read_config(tmp_path / "exp/tiny/config.yaml", "")["bpemodel"] == "exp/tiny/tokenizer"
    files = "exp/tiny/config.yaml", "exp/tiny/model.pth"
    expected = Speech2Text(*files, **SHORT)(noise(0))[0][0]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Speech2Text(*(f"../{file}" for file in files), **SHORT)(noise(0))[0][0] == expected != ""
    own, there = tmp_path / "exp" / "tiny", str(tmp_path / "exp/tiny/tokenizer")
    config = {"a": "exp/tiny/tokenizer", "b": {"c": "/gone/tokenizer", "d": "../tiny/tokenizer"}}
    assert find_own_files(config, own) == {"a": there, "b": {"c": there, "d": "../tiny/tokenizer"}}
    unchanged = {"a": there, "b": "org/model", "c": "/" + 5000 * "x"}
    assert find_own_files(unchanged, own) == unchanged


def test_heads_of_the_package_are_attached_to_their_own_whisper(case, tmp_path, caplog):
    whisper, shipped = case
    trained = open_whisper_model(str(whisper), "cpu", shipped=shipped)
    options = Speech2Text(trained=trained, **SHORT, draft_depth=5).model.options
    assert (options.draft_depth, options.draft_vocab_size) == (5, 30)
    for language, drafter in (("de", None), ("detect", None), ("fr", "text")):  # the card's: en, de
        options = Speech2Text(trained=trained, **SHORT, language=language).model.options
        assert (options.drafter, options.draft_depth) == (drafter, 2 if drafter is None else None)
    other = save_whisper_of_bytes(tmp_path / "other", seed=0)
    caplog.set_level("INFO", "espnet_medusa")
    trained = open_whisper_model(str(other), "cpu", shipped=shipped)
    assert "heads" not in trained.train_args.decoder_conf
    assert sum(line.startswith("no heads: ") for line in caplog.messages) == 1


def test_convert_decode_and_pack_heads(case, tmp_path, capsys):
    """Convert with heads, decode by default with them; pack them again from that experiment."""
    whisper, shipped = case
    folder = shipped / "tiniest"
    experiment = tmp_path / "exp"
    convert.main([*map(str, (whisper, experiment, "--heads", folder))])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2].endswith("heads: recurrent")
    assert printed[-1].startswith("tiniest: recurrent heads")
    config = read_config(experiment / "config.yaml", "")["decoder_conf"]
    expected = {search: {**DRAFT_CONF[search], "languages": ["en", "de"]} for search in DRAFT_CONF}
    assert (config["heads"], config["draft_conf"]) == ("recurrent", expected)
    trained = read_experiment(experiment)
    assert trained.draft_conf == expected and "decoder.token_counts" in trained.weights
    for source, heads, message in (
        (experiment, [folder], "has recurrent heads of its own"),
        (whisper, [folder, "--to", "hugging_face"], "only with --to experiment"),
        (whisper, [tmp_path / "nowhere"], "nowhere: no heads: README.md is missing"),
    ):
        with pytest.raises(SystemExit):
            convert.main([*map(str, (source, tmp_path / "no", "--heads", *heads))])
        assert message in capsys.readouterr().err.splitlines()[-1]
    given = ["--exp_dir", experiment, "--model_file", "model.pth", "--whisper_model", whisper]
    card, statistics = write_sources(tmp_path / "sources", draft_conf=DRAFT_CONF)
    given += ["--card", card, "--statistics", statistics, "--output_dir", tmp_path / "h"]
    stage.main(["pack_heads", *map(str, given)])
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'h'}: 0.")
    again = load_file(tmp_path / "h" / "heads.safetensors")
    torch.testing.assert_close(again, load_file(folder / "heads.safetensors"), rtol=0, atol=0)
    with command_refused(capsys, f"{tmp_path / 'h'}: exists"):
        stage.main(["pack_heads", *map(str, given)])


def test_text_adds_to_the_counts_of_the_heads(case, tmp_path, capsys, caplog):
    whisper, shipped = case
    given, lines = ["--heads", shipped / "tiniest"], ["Hello there", "", "hello again, Rita"]
    (tmp_path / "text").write_text("\n".join(lines))
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    convert.main([*map(str, (whisper, tmp_path / "without", *given))])
    convert.main(
        [*map(str, (whisper, tmp_path / "with", *given, "--draft_text", tmp_path / "text"))]
    )
    assert "--draft_text: deprecated; write --draft_vocab_text" in caplog.text
    before, after = (read_experiment(tmp_path / name) for name in ("without", "with"))
    tokens = [t for line in lines if line for t in before.text.tokenizer.encode(f" {line}")]
    special = {*before.text.tokenizer.all_special_ids}
    counts = before.weights["decoder.token_counts"]
    tokens = [token for token in tokens if token not in special]
    expected, weight = counts.clone(), int(counts.sum()) // len(tokens)
    for token in tokens:
        expected[token] += weight
    assert weight > 1 and torch.equal(after.weights["decoder.token_counts"], expected)
    for path, options, message in (
        ("text", ["--heads", "none"], "has no heads; see --heads"),
        ("nowhere", given, "nowhere: cannot be read as UTF-8"),
        ("latin", given, "latin: cannot be read as UTF-8"),
        ("empty", given, "empty: is empty; omit it"),
        ("text", ["--to", "hugging_face"], "--draft_vocab_text: only with --to experiment"),
    ):
        words = whisper, tmp_path / "no", *options, "--draft_vocab_text", tmp_path / path
        with command_refused(capsys, message):
            convert.main([*map(str, words)])


def test_decoding_by_model_tag(case, tmp_path):
    write_corpus(tmp_path, {"a": 1.0})
    words = ["--model_tag", case[0], "--search", "greedy", "--maxlenratio", -12]
    words += ["--data_path_and_name_and_type", f"{tmp_path / 'wav.scp'},speech,sound"]
    asr_inference.main([*map(str, words), "--output_dir", str(tmp_path / "out")])
    assert (tmp_path / "out/1best_recog/text").read_text().startswith("a ")


def test_what_is_a_whisper(case, tmp_path):
    assert is_whisper(str(case[0])) and is_whisper("openai/whisper-base")
    assert is_whisper(str(tmp_path / "base.pt")) and is_whisper("./nowhere")
    (tmp_path / "packed.zip").write_bytes(b"")
    assert not is_whisper(str(tmp_path / "packed.zip"))
    assert not is_whisper("kamo-naoyuki/mini_an4_asr_train_raw_bpe_valid.acc.best")
    assert not is_whisper("https://zenodo.org/record/1/files/model.zip?download=1")
    load, tag = Speech2Text.from_pretrained, str(case[0])
    assert_refused("heads: none; allowed with a Whisper", load, "somebody/some_asr", heads="none")
    assert_refused("streaming: True; not allowed with a Whisper", load, tag, streaming=True)
    assert_refused("bpemodel: a.model; not allowed with a Whisper", load, tag, bpemodel="a.model")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert_refused("model_type is not whisper", load, str(tmp_path))


def network() -> torch.nn.Module:
    """Layers with random and with computed weights, shared weights, a non-persistent buffer."""
    model = torch.nn.Sequential(
        torch.nn.Embedding(30, 4, padding_idx=0),
        torch.nn.TransformerEncoderLayer(4, 2, 8),
        torch.nn.Conv1d(4, 4, 3),
        torch.nn.LSTM(4, 4),
        torch.nn.Linear(4, 30, bias=False),
    )
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.xavier_uniform_(parameter[None])
    model[4].weight = model[0].weight
    model.register_buffer("angles", torch.arange(4).sin(), persistent=False)
    return model


def test_no_initialization_draws_no_random_numbers():
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    with NoInitialization():
        model = network()
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(model.angles, torch.arange(4).sin())
    network()
    assert not torch.equal(torch.random.get_rng_state(), before), "elsewhere all is as it was"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_are_not_copied(dtype):
    torch.manual_seed(1)
    weights = network().state_dict()
    with NoInitialization():
        model = network().to(dtype)
    model[0].weight.requires_grad_(False)
    put_weights(weights, model, "model.pth")
    found = model.state_dict()
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(found[name], weight.to(dtype)), name
        assert (found[name].data_ptr() == weight.data_ptr()) == (dtype == torch.float32)
    assert not model[0].weight.requires_grad and model[2].weight.requires_grad


def test_weights_of_another_model_are_refused():
    weights = network().state_dict()
    weights["2.bias"] = torch.zeros(5)
    message = r"model.pth: .*2.bias is \(5,\), the model's \(4,\)"
    assert_refused(message, put_weights, weights, network(), "model.pth")
    del weights["2.bias"]
    assert_refused("2.bias is missing", put_weights, weights, network(), "model.pth")


@cases(
    ({},),
    ({"decoder_conf": DECODER, "input_size": None, "frontend": "default"},),
    ({"model_conf": NO_CTC | {"freeze_whisper": "all"}, "normalize": "utterance_mvn"},),
    ({"model_conf": NO_CTC | {"sym_sos": "a", "sym_eos": "b", "sym_blank": "<blank>"}},),
    ids=str,
)
def test_the_model_is_that_of_the_task(changes):
    built = []
    for build in (ASRTask.build_model, build_whisper_model):
        args = Namespace(**copy.deepcopy(CONFIG | changes))
        assert can_build_without_task(args)
        torch.manual_seed(3)
        built.append((build(args), args))
    (expected, known), (model, args) = built
    assert args == known
    for name in ("encoder", "decoder"):
        assert type(getattr(model, name)) is type(getattr(expected, name))
        assert str(getattr(model, name)) == str(getattr(expected, name))
    assert [*model.state_dict()] == [*expected.state_dict()]
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    for name in ("sos", "eos", "blank_id", "token_list", "ctc", "ctc_weight"):
        assert getattr(model, name) == getattr(expected, name)


@cases(
    ({"encoder": "conformer"},), ({"decoder": "speech_llama"},), ({"model": "espnet"},),
    ({"model_conf": {"ctc_weight": 0.3}},), ({"preencoder": "sinc"},),
    ({"token_list": "tokens.txt"},), ({"use_adapter": True},), ids=str,
)  # fmt: skip
def test_other_models_need_the_task(changes):
    assert not can_build_without_task(Namespace(**CONFIG | changes))
