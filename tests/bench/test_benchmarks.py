"""The benchmarks run, count right and notice n-best lists that differ."""

import json
from pathlib import Path

import beam_loop
import ctc_first
import drafting
import encoder_products
import pytest
import speech_llama_heads
import torch
from drafting_report import Outcome, make_rows
from drafting_settings import SEARCHES, Setting
from heads_recipe import make_recipe
from inputs import Utterance
from tiny_whisper import save_tiny_whisper

from espnet_medusa.search.statistics import DecodingStatistics


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_recipe(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(autouse=True)
def stay_here(monkeypatch):
    """The benchmarks change the folder."""
    monkeypatch.chdir(Path.cwd())


def test_drafting(recipe, tmp_path):
    command = ["--exp_dir", recipe / "exp", "--heads", "recurrent", "--data_dir", recipe / "data"]
    command += ["--output_dir", tmp_path, "--batch_size", 2]
    command += ["--searches", "greedy", "beam5_ctc0.3"]
    with pytest.raises(SystemExit) as end:
        drafting.main([*map(str, command)])
    assert end.value.code == 0
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert all(row["identical"] == row["utterances"] == 2 for row in rows)
    plain = [row for row in rows if row["setting"]["heads"] == "plain"]
    assert sorted(row["setting"]["batch_size"] for row in plain) == [1, 1, 2, 2]
    assert all(row["fewer_calls"] == 1 and row["calls_equal_steps"] == 2 for row in plain)
    assert "CTC left out" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "calls.png").stat().st_size and (tmp_path / "time.png").stat().st_size


def test_ctc_first(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(recipe)
    experiment, output = recipe / "exp" / "asr_recurrent", tmp_path / "out" / "ctc_0.5"
    command = ["--asr_train_config", experiment / "config.yaml"]
    command += ["--asr_model_file", experiment / "model.pth", "--data_dir", "data"]
    command += ["--entropies", "0.5", "inf", "--likelihoods", "0", "1.5", "--output", output]
    ctc_first.main([*map(str, command), "--maxlenratio", "-60"])
    rows = json.loads((tmp_path / "out" / "ctc_0.5.json").read_text())["rows"]
    found = {tuple(row["setting"].values()): row for row in rows}
    assert len(found) == len(rows) == 1 + 3 * 3
    plain, exact = found[None, None, False], found[None, None, True]
    assert plain["same_text"] == exact["same_text"] == found[None, 1.5, True]["same_text"] == 2
    assert plain["wer"] == exact["wer"] and plain["calls"] >= exact["calls"] > 0
    for likelihood in (None, 0, 1.5):
        sure = found[float("inf"), likelihood, True]
        assert (sure["calls"], sure["uncalled"]) == (0, 2)
    assert found[None, 0, True]["calls"] == 1 and found[None, 0, True]["uncalled"] == 0
    assert found[None, 0, True]["wer"] == sure["wer"], "CTC's text"
    assert all(row["ms"] > row["search_ms"] > 0 for row in rows)
    lines = (tmp_path / "out" / "ctc_0.5.md").read_text().splitlines()
    assert lines[0].startswith("asr_recurrent, data: 2 utterances of 1.0 s")
    assert len(lines) == 2 + 2 + len(rows)
    for word in ("calls", "seconds"):
        assert (tmp_path / "out" / f"ctc_0.5_{word}.png").stat().st_size


def test_ctc_first_scores_cleaned_texts():
    outcomes = [ctc_first.Outcome("Ab, c.", 0, 0.1), ctc_first.Outcome("d", 4, 0.3)]
    exact = [ctc_first.Outcome("Ab, c.", 2, 0.2), ctc_first.Outcome("e", 2, 0.2)]
    cleaner = ctc_first.TextCleaner(["whisper_basic"])
    row = ctc_first.make_row(
        ctc_first.Setting(0.5), outcomes, exact, [1.0, 2.0], ["ab c", "e"], cleaner
    )
    assert row.wer == pytest.approx(100 / 3)
    assert (row.calls, row.uncalled, row.same_text, row.utterances) == (2, 1, 1, 2)
    assert row.search_ms == pytest.approx(200) and row.ms == pytest.approx(1700)


def test_heads_of_another_base_are_refused(recipe):
    models = [drafting.load_model(recipe / "exp" / name) for name in ("asr_base", "asr_recurrent")]
    with torch.no_grad():
        models[1].asr_model.ctc.ctc_lo.bias[0] += 1
    with pytest.raises(ValueError, match="asr_other: ctc.ctc_lo.bias differs"):
        drafting.check_same_base({"base": models[0], "other": models[1]})


def test_rows_count_what_differs():
    search = SEARCHES["beam5"]
    drafted = Setting(search, "block", 4, 5)
    utterances = {name: Utterance(name, None, 2.0, "a b") for name in "xyz"}

    def outcome(setting, name, calls, seconds, nbest, text):
        statistics = DecodingStatistics(decoder_calls=calls, nodes=3 * calls, tokens=4)
        return Outcome(setting, name, statistics, 8, seconds, nbest, text, 0)

    one, swapped = [((1,), -1.0), ((2,), -2.0)], [((2,), -2.0), ((1,), -1.0)]
    close = [((1,), -1.0), ((2,), -2.25)]
    outcomes = [outcome(Setting(search), name, 8, 1.0, one, "a b") for name in "xyz"]
    found = {"x": (0.5, one, "a b"), "y": (0.25, swapped, "a c"), "z": (1.0, close, "a b")}
    outcomes += [outcome(drafted, name, 4, *rest) for name, rest in found.items()]
    plain, row = make_rows(outcomes, utterances)
    assert (plain.fewer_calls, plain.identical, plain.calls_equal_steps) == (1.0, 3, 3)
    assert (row.fewer_calls, row.identical, row.score_gap) == (2.0, 2, 0.25)
    assert (row.faster[1], row.decoder_rtf) == (2.0, 0.25)
    assert row.wer == pytest.approx(100 / 6)
    assert row.eta == 2 * 12 / (6 + 6)


@pytest.mark.parametrize("ctc_weight", ["0.0", "0.3"])
def test_beam_loop(recipe, capsys, ctc_weight):
    command = ["--exp_dir", recipe / "exp" / "asr_recurrent", "--data_dir", recipe / "data"]
    command += ["--maxlenratio", "-20", "--beam_size", "3"]
    with pytest.raises(SystemExit) as end:
        beam_loop.main([*map(str, command), "--ctc_weight", ctc_weight])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    for way in ("cached", "ours", "drafted"):
        assert f"{way}: n-best of uncached in 2/2" in printed


def test_calls_of_speech_llama_heads(tmp_path):
    speech_llama_heads.main(
        ["--shapes", "mini", "--tokens", "2", "3", "--precisions", "float32", "--rounds", "1",
         "--threads", "1", "--output_dir", str(tmp_path)]
    )  # fmt: skip
    (table,) = tmp_path.glob("*/speech_llama_heads.md")
    rows = [line.split("|")[1:-1] for line in table.read_text().splitlines()[4:]]
    assert [row[:3] for row in rows] == [["mini", "float32", "2"], ["mini", "float32", "3"]]
    for *_, one, projection, latent, ratio in rows:
        assert float(one) > 0
        assert float(ratio) == pytest.approx(float(latent) / float(projection), rel=0.1)


def test_encoder_products_measures_every_candidate(tmp_path):
    whisper, output = save_tiny_whisper(tmp_path / "whisper"), tmp_path / "found"
    encoder_products.main(
        ["--model", str(whisper), "--rounds", "1", "--threads", "1", "--clock", "processor",
         "--output", str(output)]
    )  # fmt: skip
    found = json.loads(output.with_suffix(".json").read_text())["ms"]
    assert [*found["products"]][:2] == ["1500x32 by 32x96", "1500x32 by 32x32"]
    windows = found["window"]["30 s"]
    assert {"float32, ours", "bfloat16, ours", "int8, ours"} <= windows.keys()
    for cases in found.values():
        assert all(0 < ms < 10_000 for case in cases.values() for ms in case.values())
    with pytest.raises(ValueError, match="threads: 2; allowed with clock: processor: 1"):
        encoder_products.main(["--model", str(whisper), "--clock", "processor", "--threads", "2"])
