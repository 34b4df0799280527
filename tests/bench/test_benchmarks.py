"""The benchmarks run, count right and notice n-best lists that differ."""

import json
from pathlib import Path

import beam_loop
import drafting
import encoder_products
import pytest
import real_whisper
import speech_llama_heads
import torch
from drafting_report import Outcome, make_rows
from drafting_settings import SEARCHES, Setting
from experiment import make_experiment, training_config, write_noise
from inputs import Utterance
from tiny_whisper import save_tiny_whisper

from espnet_medusa.search.statistics import DecodingStatistics


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A recipe folder with recurrent heads on a random base and two utterances of noise."""
    folder = tmp_path_factory.mktemp("recipe")
    sizes = training_config()["decoder_conf"]
    conf = {"decoder_conf": sizes | {"heads": "recurrent"}}
    heads = make_experiment(folder / "exp" / "asr_recurrent", **conf)
    base = make_experiment(
        folder / "exp" / "asr_base", decoder_conf=sizes | {"heads": "none", "heads_conf": {}}
    )
    weights = torch.load(heads.model)
    torch.save(weights, heads.folder / "valid.acc_heads.ave.pth")
    of_heads = ("decoder.heads.", "decoder.token_counts")
    frozen = {name: weight for name, weight in weights.items() if not name.startswith(of_heads)}
    torch.save(frozen, base.folder / "valid.acc.ave.pth")
    data_dir = folder / "data"
    data_dir.mkdir()
    for index in range(2):
        write_noise(data_dir / f"{index}.wav", 0.8 + 0.4 * index, index)
    (data_dir / "wav.scp").write_text("a data/0.wav\nb data/1.wav\n")
    (data_dir / "text").write_text("a ab cd\nb ef\n")
    return folder


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


def test_real_whisper_compares_texts_with_those_without_drafts():
    plain = [
        real_whisper.Outcome("A b.", 2.0, 0.5, 4, 4),
        real_whisper.Outcome("C", 4.0, 1.0, 2, 2),
    ]
    drafted = [
        real_whisper.Outcome("a b", 1.0, 0.2, 1, 4),
        real_whisper.Outcome("C", 2.0, 0.4, 1, 2),
    ]
    way = real_whisper.Way("int8", drafts=True)
    figures = real_whisper.row(way, drafted, plain, ["a b", "d"])
    assert figures["same_text"] == "1/2" and figures["tokens_per_call"] == 3.0
    assert figures["wer"] == pytest.approx(100 / 3)  # of three words; case and stops do not count
    assert figures["ms"] == pytest.approx(1500) and figures["encoder_ms"] == pytest.approx(1200)
    peer = real_whisper.row(
        real_whisper.Way("int8"), [real_whisper.Outcome("a b", 1.0)], None, ["a b"]
    )
    lines = real_whisper.table({"drafts": figures, "peer": peer}).splitlines()
    assert lines[2:] == ["|drafts|1500|1200|300|1.0|3.00|33.3|1/2|", "|peer|1000|||||0.0||"]
