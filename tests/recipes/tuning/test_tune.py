"""The tune command writes a decode config for a model, its drafters and held-out audio."""

import json
import re
from unittest.mock import Mock

import pytest
import torch
import yaml
from cases import cases
from drafted_whisper import with_options
from experiment import DECODER, NO_CTC, make_experiment, read_lines, write_corpus
from refusals import exit_status
from s2t_experiment import SIZES, add_heads, make_s2t_experiment
from stock_experiment import stock_experiment

from espnet_medusa.bin import asr_inference, s2t_inference, tune
from espnet_medusa.data.errors import InputError
from espnet_medusa.decoding.search.search_options import CTC, CTC_HEADS, DRAFTERS, HEADS
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.recipes.tuning import available as tuning_available
from espnet_medusa.recipes.tuning import candidates
from espnet_medusa.recipes.tuning.available import DraftSetting, available
from espnet_medusa.recipes.tuning.tuned_model import DraftModelFiles, TunedASR
from espnet_medusa.recipes.tuning.tuning_report import DRAFT_KEYS

BEAM = "--search beam"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_corpus(folder, {f"u{index}": 0.2 + 0.1 * index for index in range(4)})
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return make_experiment(folder, decoder_conf=DECODER, model_conf=NO_CTC)


@pytest.fixture
def few_settings(monkeypatch):
    monkeypatch.setattr(tuning_available, "SHARES", (0.3,))
    monkeypatch.setattr(candidates, "depths", lambda *_: [1, 3])
    monkeypatch.setattr(candidates, "widths", lambda *_, **__: [2])
    monkeypatch.setattr("espnet_medusa.recipes.tuning.tuner.CHECK_ROUNDS", 2)


def texts(main, command, corpus, folder, *options) -> dict[str, str]:
    audio = "--data_path_and_name_and_type", f"{corpus}/wav.scp,speech,sound"
    main([*map(str, (*command, *options, *audio, "--output_dir", folder))])
    return read_lines(folder / "1best_recog" / "text")


@cases(
    ("search: greedy\nmaxlenratio: -6\ndraft_depth: 2\nlookahead: auto\n", []),
    ("beam_size: 2\nctc_weight: 0.3\nmaxlenratio: -5\n", ["--batch_size", "3", "--nbest", "2"]),
)
def test_config_report_table_and_figure(
    config, options, experiment, plain, corpus, tmp_path, few_settings, capsys
):
    (tmp_path / "decode.yaml").write_text(config)
    output = tmp_path / "new" / "tuned.yaml"
    command = [*experiment.options(), "--data_dir", corpus, "--num_utterances", 3, "--config"]
    command += [tmp_path / "decode.yaml", *options, "--draft_models", plain.folder]
    tune.main([*command, "--output", output])
    written = capsys.readouterr()
    assert "x over the baseline" in written.out and str(output) in written.out
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    report = json.loads(output.with_suffix(".json").read_text())
    names = ["baseline", "heads", "ctc", "ctc+heads"]
    names += [f"{kind} {plain.folder.name}" for kind in ("model", "ctc+model")]
    table = output.with_suffix(".md").read_text()
    rows = [re.findall(r"[^|]+", line) for line in table.splitlines() if line.startswith("|")]
    shown = [row[0].strip(" *") for row in rows]
    assert shown == ["drafter", "---", *names, "drafter", "---", *names[1:]]
    assert {len(row) for row in rows[:8]} == {11} and {len(row) for row in rows[8:]} == {3}
    assert all(row[10].strip() == "0/3" for row in rows[3:8])
    tuned = yaml.safe_load(output.read_text())
    chosen = {name: tuned.pop(name) for name in DRAFT_KEYS if name in tuned}
    assert {"drafter": None, **chosen} == report["chosen"]
    words = zip(options[::2], options[1::2], strict=True)
    given = yaml.safe_load(config) | {name.removeprefix("--"): int(x) for name, x in words}
    assert tuned == {name: value for name, value in given.items() if name not in DRAFT_KEYS}
    assert str(experiment.model) in output.read_text().split("search:")[0]
    assert report["num_utterances"] == 3 and report["left_out"] == []
    checked = {(row["name"], row["utterances"]) for row in report["settings"] if row["checked"]}
    assert checked == {(name, 3) for name in names}
    for row in report["settings"]:
        assert row["different_utterances"] == [] and row["search_seconds"] > 0
        assert sum(row["parts"].values()) == pytest.approx(row["seconds_with_encoders"])
        assert (row["parts"]["draft model's encoder"] > 0) == (row["name"] not in names[:2])
    (without,) = (row for row in report["settings"] if row["draft_depth"] == 0)
    assert without["calls_saved"] == without["speedup"] == 1.0 and without["checked"]
    decode = asr_inference.main, experiment.options(), corpus
    decoded = texts(*decode, tmp_path / "decoded", "--config", output)
    assert [*decoded] == ["u0", "u1", "u2", "u3"]
    nothing = "--config", tmp_path / "decode.yaml", "--draft_depth", 0
    assert texts(*decode, tmp_path / "plain", *nothing) == decoded


def test_s2t_models_are_tuned_with_all_drafters(corpus, tmp_path, few_settings):
    base = make_s2t_experiment(tmp_path / "base", 1)
    draft = make_s2t_experiment(tmp_path / "draft", 2, decoder_conf=SIZES | {"num_blocks": 1})
    files = add_heads(tmp_path / "heads", base, "recurrent").items()
    model = [word for name, path in files for word in (f"--{name}", str(path))]
    search = ["--beam_size", "2", "--ctc_weight", "0.3", "--maxlenratio", "-5", "--lang_sym", "deu"]
    output = tmp_path / "tuned.yaml"
    command = [*model, *search, "--batch_size", "2", "--data_dir", corpus, "--output", output]
    tune.main([*command, "--draft_models", draft["s2t_train_config"].parent])
    report, tuned = json.loads(output.with_suffix(".json").read_text()), output.read_text()
    names = {"baseline", "heads", "ctc", "ctc+heads", "model draft", "ctc+model draft"}
    assert {row["name"] for row in report["settings"] if row["checked"]} == names
    for row in report["settings"]:
        assert row["different_utterances"] == []
        assert (row["parts"]["draft model's encoder"] > 0) == ("model" in row["name"])
    assert report["model"] in tuned and "lang_sym: deu" in tuned
    decode = s2t_inference.main, model, corpus
    decoded = texts(*decode, tmp_path / "decoded", "--config", output)
    plain = texts(*decode, tmp_path / "plain", *search, "--draft_depth", 0)
    assert len(decoded) == 4 and decoded == plain


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_each_drafters_keys_are_decode_options_that_keep_the_text(
    experiment, plain, corpus, tmp_path, search
):
    base = {"search": search, "beam_size": 2, "maxlenratio": -6.0, "ctc_weight": 0.0}
    speech2text = Speech2Text(experiment.config, experiment.model, **base, draft_depth=0)
    files = DraftModelFiles(str(plain.folder), str(plain.model))
    drafting = available(TunedASR(speech2text), DRAFTERS, [files])
    assert not drafting.left_out and len(drafting.drafters) == 5
    speech = 0.1 * torch.randn(6000, generator=torch.Generator().manual_seed(0))
    expected = speech2text(speech)[0][2]
    for drafter in drafting.drafters.values():
        options = drafter.config(DraftSetting(drafter.name, 2, share=[*drafter.proposers][-1]))
        drafted = Speech2Text(experiment.config, experiment.model, **base, **options)
        assert drafted(speech)[0][2] == expected
        assert sum(drafted.statistics.drafted) > 0


def test_heads_are_tried_with_several_vocabularies(experiment, monkeypatch):
    monkeypatch.setattr(tuning_available, "VOCABULARIES", (3, 5, 999))
    base = {"search": "greedy", "maxlenratio": -6.0, "ctc_weight": 0.0}
    speech2text = Speech2Text(experiment.config, experiment.model, **base, draft_depth=0)
    uncounted = available(TunedASR(speech2text), [HEADS, CTC], [])
    assert [*uncounted.drafters] == [HEADS, CTC]
    assert re.match("draft_vocab_size: 3; this model has no counts", *uncounted.left_out)
    speech2text.asr_model.decoder.count_tokens(torch.arange(len(speech2text.asr_model.token_list)))
    drafting = available(TunedASR(speech2text), [HEADS, CTC, CTC_HEADS], [])
    sizes = {name: d.keys.get("draft_vocab_size") for name, d in drafting.drafters.items()}
    assert sizes == {
        "heads": None, "heads, 3 tokens": 3, "heads, 5 tokens": 5, "ctc": None,
        "ctc+heads": None, "ctc+heads, 3 tokens": 3, "ctc+heads, 5 tokens": 5,
    }  # fmt: skip
    drafter = drafting.drafters["heads, 3 tokens"]
    expected = {"drafter": HEADS, "draft_vocab_size": 3}
    assert expected.items() <= drafter.config(DraftSetting(drafter.name, 2)).items()
    assert len(drafter.proposers[None].vocabulary) == 3
    speech2text = with_options(speech2text, draft_vocab_size=5)
    drafting = available(TunedASR(speech2text), [HEADS, CTC], [])
    sizes = {name: d.keys.get("draft_vocab_size") for name, d in drafting.drafters.items()}
    assert sizes == {"heads": 5, "heads, 3 tokens": 3, "ctc": 5}


def test_missing_drafters_are_named(plain, tmp_path):
    stock = stock_experiment(tmp_path / "stock")
    speech2text = Speech2Text(stock.config, stock.model, search="greedy", draft_depth=0)
    drafting = available(TunedASR(speech2text), DRAFTERS, [])
    assert [*drafting.drafters] == ["ctc"]
    assert [re.split("[;(]", line)[:2] for line in drafting.left_out] == [
        ["drafter: heads", " this model has no heads"],
        ["drafter: ctc+heads", " this model has no heads"],
        ["drafter: model", " no draft model is given"],
    ]
    speech2text = Speech2Text(plain.config, plain.model, search="greedy", draft_depth=0)
    files = [DraftModelFiles(str(stock.folder))]
    drafting = available(TunedASR(speech2text), ["ctc", "model"], files)
    assert [*drafting.drafters] == ["model stock"]
    assert drafting.readers["model stock"] is not speech2text
    assert re.match("drafter: ctc; this model has no CTC branch", *drafting.left_out)


def test_a_model_with_nothing_to_draft_decodes_without_drafts(plain, corpus, tmp_path, capsys):
    output = tmp_path / "tuned.yaml"
    command = [*plain.options(), "--wav_scp", corpus / "wav.scp", "--search", "greedy"]
    command += ["--ctc_weight", 0, "--drafters", "heads", "ctc", "--draft_depth", 2]
    tune.main([*command, "--maxlenratio", -5, "--output", output])
    written = capsys.readouterr().out
    assert "this model has no drafter" in written
    assert "left out: drafter: ctc" in written and "no CTC branch" in written
    assert yaml.safe_load(output.read_text()) == {
        "search": "greedy", "ctc_weight": 0.0, "maxlenratio": -5.0, "draft_depth": 0,
    }  # fmt: skip
    assert not json.loads(output.with_suffix(".json").read_text())["settings"][0]["checked"]
    assert "Left out" in output.with_suffix(".md").read_text()


@cases(
    ([], False),
    (["--decoder_precision", "bfloat16"], True),
    (["--dtype", "float64"], False),
    (["--dtype", "float64", "--decoder_precision", "bfloat16"], True),
)
def test_the_decoders_precision_decides_whether_sums_round(
    options, rounding, experiment, corpus, tmp_path, monkeypatch
):
    stop = Mock(side_effect=InputError("stop after the task"))
    monkeypatch.setattr(tune, "tune", stop)
    command = [*experiment.options(), "--data_dir", str(corpus), "--num_utterances", "1"]
    with pytest.raises(SystemExit):
        tune.main([*command, "--output", str(tmp_path / "tuned.yaml"), *options])
    stop.assert_called_once()
    task = stop.call_args.args[0]
    assert task.rounding == (task.search.decoder.dtype == torch.bfloat16) == rounding


@cases(
    ("", r"a: nowhere.wav.*--key_file"),
    ("--data_dir empty", "wav.scp.*empty"),
    ("--data_dir none", "none/wav.scp"),
    ("--medusa_choices 1 2", "medusa_choices.*remove it"),
    ("--ctc_likelihood_threshold 0.1", "ctc_likelihood_threshold: 0.1; allowed while tuning"),
    ("--output tuned.yml", "tuned.yml; allowed.*yaml"),
    (f"{BEAM} --streaming true", "nothing to tune"),
    ("--config no.yaml", "no.yaml"),
    (f"{BEAM} --acceptance threshold --ctc_weight 0", "acceptance: threshold with search: beam"),
    ("--draft_models nowhere", "draft_model: .*nowhere"),
    ("--draft_models nowhere --drafters ctc", r"nowhere; allowed with one of model, ctc"),
)
def test_bad_options_and_audio_fail(options, message, experiment, tmp_path, in_folder, capsys):
    for name, table in {"data": "a nowhere.wav\n", "empty": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "wav.scp").write_text(table)
    command = [*experiment.options(), "--data_dir", "data", "--search", "greedy"]
    assert exit_status(tune.main, *command, "--output", "tuned.yaml", *options.split()) != 0
    lines = capsys.readouterr().err.splitlines()
    assert any(re.search(message, line) for line in lines), lines
    assert not (tmp_path / "tuned.yaml").exists()
