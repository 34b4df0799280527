"""The s2t recipe in miniature: all stages, ESPnet's search and ours."""

import re

import numpy as np
import pytest
import yaml
from downloads import tree
from recipes import ROOT, SHORT_TRAINING, copy_config, link_recipe, run

from espnet_medusa.kaldi.table import read_table
from espnet_medusa.report.measures import nbest_lists

RECIPE = "mini_synth/s2t1"
CORPUS = "--minutes 0.2 --dev_utterances 2 --test_utterances 2 --second_minutes 0.2 --nj 1"
TINY = {"attention_heads": 2, "linear_units": 16, "num_blocks": 1}
OPTIONS = ("--nbpe", "140", "--train_nj", "1", "--nj", "1")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The folder of a recipe that has run."""
    pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")
    root = tmp_path_factory.mktemp("s2t")
    folder = link_recipe(root, RECIPE, without=("conf",))
    (root / "conf").symlink_to(ROOT / "conf")
    short = yaml.safe_load(SHORT_TRAINING)
    tiny = {"encoder_conf": TINY | {"output_size": 16, "cgmlp_linear_units": 16}}
    tiny |= {"decoder_conf": TINY}
    conf = ROOT / "egs" / RECIPE / "conf"
    copy_config(conf / "train_s2t.yaml", folder / "conf", **short, **tiny)
    for search in ("beam5", "greedy"):
        copy_config(conf / f"decode_{search}.yaml", folder / "conf", maxlenratio=-8)
    data = f"{CORPUS} --second_dev_utterances 2"
    run(folder, "./run.sh", *OPTIONS, "--local_data_opts", data, status=0)
    return folder


def test_data_are_those_of_the_s2t_task(recipe):
    data = recipe / "dump" / "raw" / "train"
    names = ("text", "text.prev", "text.ctc", "utt2lang", "utt2spk", "wav.scp")
    tables = {name: read_table(data / name) for name in names}
    assert {*tables["utt2lang"].values()} == {"eng", "deu"}
    latest = {}
    for key, words in tables["text.ctc"].items():
        symbols = rf"<{tables['utt2lang'][key]}><asr><0.00> "
        assert re.fullmatch(rf"{symbols}{words}<[1-7]\.\d0>", tables["text"][key])
        speaker = tables["utt2spk"][key]
        assert tables["text.prev"][key] == latest.get(speaker, "<na>")
        latest[speaker] = words
    tokens = (recipe / "dump" / "tokens" / "tokens.txt").read_text().split()
    assert tokens[:3] == ["<blank>", "<unk>", "<na>"]
    assert tokens[-3:] == ["<sos>", "<eos>", "<sop>"]
    assert tokens.index("<6.50>") - tokens.index("<0.00>") == 65


@pytest.mark.parametrize("name", ["beam5", "beam5_ctc"])
def test_nbest_lists_are_those_of_espnet(recipe, name):
    for test_set in ("test", "test_de"):
        folders = [recipe / "exp" / "s2t_base" / tag / test_set for tag in ("espnet_beam5", name)]
        expected, lists = (nbest_lists(folder / "logdir") for folder in folders)
        assert lists.keys() == expected.keys() and len(lists) == 2
        for key in lists:
            assert lists[key][0] == expected[key][0] and len(lists[key][0]) == 5
            np.testing.assert_allclose(lists[key][1], expected[key][1], atol=1e-4)


def test_table_has_all_rows(recipe):
    rows = (recipe / "exp" / "RESULTS.md").read_text().split("\n")
    for language in ("English", "German"):
        for system in ("espnet2.bin.s2t_inference", "ours, baseline", "ours, CTC drafts"):
            beam, greedy = (row for row in rows if row.startswith(f"|{language}|{system}|"))
            assert beam.endswith("|2/2|") and greedy.endswith("|2/2|")


def test_second_run_decodes_nothing(recipe):
    before = tree(recipe / "exp")
    done = run(recipe, "./run.sh", *OPTIONS, "--stage", "12", "--stop_stage", "12", status=0)
    assert done.stdout.count("complete already, nothing to do") == 12
    assert tree(recipe / "exp") == before
