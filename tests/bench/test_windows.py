"""Both windows of an experiment: the texts of experiments that say so; resumed; tabled."""

import json

import pytest
import windows
from experiment import ENCODER, NO_CTC, WINDOW_S, make_experiment, write_noise
from heads_recipe import make_recipe
from inputs import read_utterances

from espnet_medusa.inference.speech2text import Speech2Text


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = make_recipe(tmp_path_factory.mktemp("recipe"), num_utterances=3)
    for window in ("whisper", "audio"):
        encoder = ENCODER | {"window": window}
        make_experiment(folder / "exp" / window, encoder_conf=encoder, model_conf=NO_CTC)
    write_noise(folder / "long.wav", WINDOW_S + 0.5)  # left out
    for table, value in (("wav.scp", folder / "long.wav"), ("text", "a b")):
        with (folder / "data" / table).open("a") as stream:
            stream.write(f"zz_long {value}\n")
    return folder


def run(*experiments, output):
    windows.main(
        [*(f"exp/{name}" for name in experiments), "--data_dir", "data", "--output_dir",
         str(output), "--max_tokens", "12", "--cleaner", "none"]
    )  # fmt: skip
    lines = (output / "results.md").read_text().splitlines()[4:]
    return [line.split("|")[1:-1] for line in lines]


def texts(recipe, name, precision):
    model = Speech2Text(
        recipe / "exp" / name / "config.yaml", recipe / "exp" / name / "model.pth", search="greedy",
        draft_depth=0, maxlenratio=-12, encoder_precision=precision, decoder_precision=precision,
    )  # fmt: skip
    return {
        one.id: model(one.speech)[0][0]
        for one in read_utterances(recipe / "data")
        if one.seconds <= WINDOW_S
    }


def test_a_window_is_that_of_an_experiment_which_says_so(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(recipe)
    rows = run("whisper", "audio", output=tmp_path)
    assert [tuple(row[:3]) for row in rows] == [
        ("whisper", "whisper", "float32"), ("whisper", "audio", "float32"),
        ("whisper", "whisper", "int8"), ("whisper", "audio", "int8"),
        ("audio", "audio", "float32"), ("audio", "audio", "int8"),
    ]  # fmt: skip
    assert rows[1][3:6] == rows[4][3:6], "the same weights in the same window"
    for experiment, window, precision, *_ in rows:
        kept = [*(tmp_path / experiment).glob(f"{window}_{precision}/journal.jsonl")]
        assert len(kept) == 1
        lines = [json.loads(line) for line in kept[0].read_text().splitlines()[1:]]
        found = {line["key"]: line["nbest"][0]["text"] for line in lines}
        assert found == texts(recipe, window, precision) and len(found) == 3
    monkeypatch.setattr(windows, "decode", None)  # nothing is decoded again
    assert run("whisper", "audio", output=tmp_path) == rows
    assert (tmp_path / "results.md").read_text().startswith("data: 3 utterances of ")


def test_what_is_no_experiment_is_refused(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(recipe)
    with pytest.raises(SystemExit):
        run("nobody", output=tmp_path)
    assert "exp/nobody/config.yaml: cannot be read" in capsys.readouterr().err
