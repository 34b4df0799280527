"""The command: from model and held-out audio to a config that asr_inference takes."""

import json
import re

import pytest
import torch
import yaml
from experiment import make_experiment, read_lines, write_noise

from espnet_medusa.bin import asr_inference, tune_drafts
from espnet_medusa.errors import InputError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lines = []
    for index in range(4):
        write_noise(folder / f"{index}.wav", 0.2 + 0.1 * index, seed=index)
        lines.append(f"u{index} {folder / f'{index}.wav'}\n")
    (folder / "wav.scp").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return make_experiment(tmp_path_factory.mktemp("experiment"))


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("search: greedy\nmaxlenratio: -9\ndraft_depth: 2\ndraft_budget: 4\n", []),
        ("beam_size: 2\nctc_weight: 0.3\nmaxlenratio: -7\n", ["--batch_size", "3", "--nbest", "2"]),
    ],
)
def test_config_report_and_figure(experiment, corpus, tmp_path, config, options, capsys):
    (tmp_path / "decode.yaml").write_text(config)
    output = tmp_path / "new" / "tuned.yaml"
    tune_drafts.main(
        [
            *experiment.options(), "--data_dir", str(corpus), "--num_utterances", "3",
            "--config", str(tmp_path / "decode.yaml"), *options, "--output", str(output),
        ]
    )  # fmt: skip
    written = capsys.readouterr()
    assert "times as fast (predicted" in written.out and str(output) in written.out
    assert "depths and widths" in written.err
    report = json.loads(output.with_suffix(".json").read_text())
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")

    tuned = yaml.safe_load(output.read_text())
    assert {name: tuned.pop(name, None) for name in tune_drafts.DRAFT_KEYS} == {
        "draft_depth": 0, "draft_width": None, "draft_budget": None, **report["chosen"],
    }  # fmt: skip
    given = yaml.safe_load(config) | {
        name.removeprefix("--"): int(value)
        for name, value in zip(options[::2], options[1::2], strict=True)
    }
    assert tuned == {name: value for name, value in given.items() if "draft" not in name}
    assert str(experiment.model) in output.read_text().split("search:")[0]

    assert report["num_utterances"] == 3
    assert report["check"]["measured_ratio"] == pytest.approx(
        report["check"]["plain_seconds"] / report["check"]["tuned_seconds"]
    )
    plain = next(row for row in report["settings"] if row["draft_depth"] == 0)
    assert plain["calls_saved"] == 1.0 and plain["run_ahead_steps"] == 0
    for row in report["settings"]:
        assert row["different_utterances"] == [] and row["predicted_seconds"] > 0
        assert sum(row["predicted_parts"].values()) == pytest.approx(row["predicted_seconds"])
    assert set(report["costs"]) == {"with_drafts", "without_drafts"}

    decoded = tmp_path / "decoded"
    asr_inference.main(
        [
            *experiment.options(), "--config", str(output), "--output_dir", str(decoded),
            "--data_path_and_name_and_type", f"{corpus / 'wav.scp'},speech,sound",
        ]
    )  # fmt: skip
    assert [*read_lines(decoded / "1best_recog" / "text")] == ["u0", "u1", "u2", "u3"]


def test_a_model_without_heads_decodes_without_drafts(corpus, tmp_path, capsys):
    decoder = {
        "num_blocks": 1, "attention_heads": 2, "linear_units": 48, "max_target_positions": 40,
    }  # fmt: skip
    plain = make_experiment(tmp_path / "exp", decoder_conf=decoder | {"heads": "none"})
    output = tmp_path / "tuned.yaml"
    tune_drafts.main(
        [
            *plain.options(), "--wav_scp", str(corpus / "wav.scp"), "--search", "greedy",
            "--draft_depth", "2", "--maxlenratio", "-5", "--output", str(output),
        ]
    )  # fmt: skip
    assert "this model has no heads" in capsys.readouterr().out
    assert yaml.safe_load(output.read_text()) == {
        "search": "greedy", "maxlenratio": -5.0, "draft_depth": 0,
    }  # fmt: skip
    assert json.loads(output.with_suffix(".json").read_text())["check"] is None


@pytest.mark.parametrize(
    ("options", "rounding"),
    [
        ([], False),
        (["--decoder_precision", "bfloat16"], True),
        (["--dtype", "float64"], False),
        (["--dtype", "float64", "--decoder_precision", "bfloat16"], True),
    ],
)
def test_the_decoders_precision_says_whether_sums_round(
    experiment, corpus, tmp_path, monkeypatch, options, rounding
):
    tasks = []

    def watched(task):
        tasks.append(task)
        raise InputError("seen enough")

    monkeypatch.setattr(tune_drafts, "Tuner", watched)
    command = [*experiment.options(), "--data_dir", str(corpus), "--num_utterances", "1"]
    with pytest.raises(SystemExit):
        tune_drafts.main([*command, "--output", str(tmp_path / "tuned.yaml"), *options])
    [task] = tasks
    assert task.rounding == rounding
    assert (task.search.decoder.dtype == torch.bfloat16) == rounding


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("", [], "wav.scp.*empty"),
        (None, [], "wav.scp"),
        ("a nowhere.wav\n", [], r"a: nowhere.wav.*--key_file"),
        ("a never-read.wav\n", ["--medusa_choices", "1", "2"], "medusa_choices.*remove it"),
        ("a never-read.wav\n", ["--ngpu", "2"], "ngpu: 2; allowed: at most 1"),
        ("a never-read.wav\n", ["--acceptance", "any"], "acceptance: 'any'.*exact"),
        ("a never-read.wav\n", ["--asr_model_file", "no.pth"], "no.pth: no such checkpoint"),
        ("a never-read.wav\n", ["--output", "tuned.yml"], "tuned.yml; allowed.*yaml"),
        ("a never-read.wav\n", ["--search", "beam", "--streaming", "true"], "nothing to tune"),
        ("a never-read.wav\n", ["--config", "no.yaml"], "no.yaml"),
    ],
)
def test_bad_input_is_one_line(experiment, tmp_path, capsys, table, options, message):
    if table is not None:
        (tmp_path / "wav.scp").write_text(table)
    command = [*experiment.options(), "--data_dir", str(tmp_path), "--search", "greedy"]
    with pytest.raises(SystemExit) as stopped:
        tune_drafts.main([*command, "--output", str(tmp_path / "tuned.yaml"), *options])
    assert stopped.value.code not in (0, None)
    lines = capsys.readouterr().err.splitlines()
    assert any(re.search(message, line) for line in lines), lines
    assert not (tmp_path / "tuned.yaml").exists()
