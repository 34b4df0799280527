"""The mini recipes: demo, drafters, Speech-LLaMA, s2t; configs, options of asr.sh, tables."""

import dataclasses
import itertools
import os
import re
from pathlib import Path

import numpy as np
import pytest
import warm_python
import yaml
from corpus_plan import CorpusOptions
from downloads import tree
from recipes import (
    FAKE_ASR,
    ROOT,
    SHORT_TRAINING,
    copy_config,
    link_llama_recipe,
    link_recipe,
    record_asr,
    recorded,
    run,
    write_script,
)
from waiting import full_length

from espnet_medusa.data.kaldi.table import read_table
from espnet_medusa.decoding.search.search_options import check_options
from espnet_medusa.inference import decoding_command
from espnet_medusa.inference.decode_options import DecodeOptions
from espnet_medusa.recipes.report.measures import nbest_lists
from espnet_medusa.recipes.report.plan import read_plan

DEMO = ROOT / "egs" / "mini_synth" / "demo"
FULL = ROOT / "egs" / "mini_synth" / "asr1"
SYSTEM = "llama_latent_3"
ENCODER = {"output_size": 16, "num_blocks": 1, "attention_heads": 2, "linear_units": 16}


def config(folder: Path, name: str) -> dict:
    return yaml.safe_load((folder / "conf" / f"{name}.yaml").read_text())


def run_recorded(folder: Path, script: str, *options: str, status: int | None = 0):
    """Run a recipe with the fake asr.sh; return stdout and the options of each call."""
    record_asr(folder)
    return run(folder, script, *options, status=status).stdout, recorded(folder)


def test_demo_trains_a_base_and_heads_on_a_smaller_corpus(tmp_path):
    folder = link_recipe(tmp_path, "mini_synth/demo")
    printed, (base, *heads) = run_recorded(folder, "./run.sh", status=None)  # no report
    assert re.search(r"about \d+ minutes", printed), "the expected time is printed"
    names = [call["--asr_tag"] for call in heads]
    assert base["--asr_tag"] == "base" and names[-1] == "recurrent" and len(names) == 2
    for call in (base, *heads):
        assert (DEMO / call["--asr_config"]).is_file()
        for decoding in call["--inference_configs"].split():
            assert (DEMO / decoding).is_file()
        assert call["--train_nj"] == "2"
    parser = pytest.importorskip("make_corpus").get_parser()
    corpus = vars(parser.parse_args(base["--local_data_opts"].split()))
    full = CorpusOptions()
    assert corpus["minutes"] < full.minutes
    for same in ("test_utterances", "dev_utterances", "test_unseen_fraction", "seed"):
        assert corpus[same] == getattr(full, same), "the test set is the same"


@pytest.mark.parametrize("system", ["linear", "block", "recurrent"])
def test_heads_of_the_demo_fit_its_base(system):
    base, heads = config(DEMO, "train_base"), config(DEMO, f"train_{system}")
    assert heads["decoder_conf"].pop("heads") == system
    assert heads["decoder_conf"].pop("heads_conf") == {"num_heads": 8}
    for part in ("encoder_conf", "decoder_conf"):
        assert heads[part] == {k: v for k, v in base[part].items() if k != "dropout_rate"}


@pytest.mark.parametrize("system", ["base", "linear", "block", "recurrent"])
def test_demo_is_the_full_recipe_with_other_sizes(system):
    demo, full = (config(folder, f"train_{system}") for folder in (DEMO, FULL))
    sizes = ("encoder_conf", "decoder_conf", "optim_conf", "scheduler_conf", "model_conf")
    for name in (*sizes, "batch_size", "max_epoch"):
        ours, theirs = demo.pop(name), full.pop(name)
        assert not isinstance(ours, dict) or ours.keys() == theirs.keys()
    assert demo == full


def decoded_by(calls: list[dict[str, str]]) -> list[tuple[str, str]]:
    """Experiment and inference tag, as asr.sh names them, of all calls that decode."""
    result = []
    for call in calls:
        arguments = call.get("--inference_args", "").replace("--", "_").replace(" ", "")
        model = call.get("--inference_asr_model", "").removesuffix(".pth")
        assert "\n" not in call.get("--inference_configs", ""), "asr.sh reads one line"
        for path in call.get("--inference_configs", "").split():
            assert (FULL / path).is_file(), path
            tag = f"{Path(path).stem}{arguments}_asr_model_{model}"
            result.append((f"asr_{call['--asr_tag']}", tag))
    return result


def test_every_row_of_the_report_is_decoded_once_and_models_start_from_the_base(tmp_path):
    drafters = link_recipe(tmp_path, "mini_synth/asr1")
    _, first = run_recorded(drafters, "./run_drafters.sh", "--stop_stage", "6")
    # The fake asr.sh writes no lists, so that the stage fails after its last decoding.
    assert run(drafters, "./run_drafters.sh", "--stage", "7", "--stop_stage", "7").returncode != 0
    result = decoded_by(first + recorded(drafters))
    assert len(result) == len(set(result))
    for table in read_plan(ROOT / "conf" / "report" / "mini_synth_drafters.yaml").tables:
        for key, system in table.systems.items():
            tags = [tag for exp, tag in result if exp == system.exp]
            fitting = [tag for tag in tags if tag.split("_asr_model_")[0] == system.decoding]
            assert system.decoding in tags or len(fitting) == 1, (table.title, key)

    _, made = run_recorded(drafters, "./run_drafters.sh", "--stop_stage", "3")
    trained = {call["--asr_tag"]: call for call in made if "--asr_tag" in call}
    assert [*trained] == ["draft", "draft_version", "ctc", "base_ctc", "conformer"]
    base = "exp/asr_base/valid.acc.ave.pth"
    assert trained["draft"]["--pretrained_model"] == base
    assert trained["base_ctc"]["--pretrained_model"] == base
    assert trained["ctc"]["--pretrained_model"] == f"{base}:encoder:encoder {base}:decoder:decoder"
    assert "--pretrained_model" not in trained["draft_version"]
    assert {call["--nbpe"] for call in made[1:4]} == {"180"}
    assert trained["conformer"]["--train_module"] == "espnet2.bin.asr_train"
    for name, call in trained.items():
        assert call["--asr_config"] == f"conf/train_{name}.yaml"


@pytest.mark.parametrize("path", sorted(FULL.glob("conf/decode_*.yaml")), ids=lambda p: p.stem)
def test_decode_configs_have_known_options(path):
    given = config(FULL, path.stem)
    names = {entry.name for entry in dataclasses.fields(DecodeOptions)}
    options = {name: value for name, value in given.items() if name in names}
    assert given.keys() <= names | {
        action.dest for action in decoding_command.get_parser()._actions
    }
    check_options(DecodeOptions(**options), given.get("beam_size", 20))


def test_hybrid_searches_differ_only_in_drafts_and_precision():
    other = {"drafter", "draft_depth", "decoder_precision", "lookahead"}
    hybrid = config(FULL, "decode_hybrid")
    for way in ("baseline", "ctc_draft", "ctc_draft_cost", "baseline_int8"):
        options = config(FULL, f"decode_hybrid_{way}").items()
        assert {key: value for key, value in options if key not in other} == hybrid


@pytest.fixture
def llama(tmp_path):
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    recipe, ways = ("mini_synth/asr1", "train_llama*.yaml"), ("baseline", "beam4_threshold")
    return link_llama_recipe(tmp_path, *recipe, *ways, encoder_conf=ENCODER)


def test_speech_llama_of_two_languages_writes_tables(llama):
    pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")
    data = "--minutes 0.4 --dev_utterances 2 --test_utterances 2 --nj 1"
    second = "--second_language de --second_minutes 0.3 --second_dev_utterances 2"
    run(
        llama, "./run_speech_llama.sh", "--base_start", "",
        "--local_data_opts", f"{data} {second}", "--nbpe", "60", "--heads", SYSTEM,
        "--decodings", "beam4_threshold", "--test_sets", "test_de", "--eval_valid_set", "false",
        "--nj", "1", "--train_nj", "1", "--inference_nj", "1",
        status=0,
    )  # fmt: skip
    for name in ("train_en_de", "dev_en_de"):
        languages = read_table(llama / "dump" / "raw" / name / "utt2lang")
        assert set(languages.values()) == {"en", "de"}
        assert all(key.startswith(language) for key, language in languages.items())
    exp = llama / "exp" / f"asr_{SYSTEM}"
    trained = yaml.safe_load((exp / "config.yaml").read_text())
    assert trained["decoder_conf"]["heads_conf"]["num_heads"] == 2
    assert trained["init_param"] == ["exp/asr_llama/valid.acc.ave.pth"]
    (decoded,) = exp.glob("beam4_threshold_*/test_de/text")
    assert len(read_table(decoded, require_value=False)) == 2
    tables = llama / "exp" / "speech_llama"
    assert f"{SYSTEM} beam4_threshold" in (tables / "RESULTS.md").read_text()
    assert (tables / "REPORT.md").stat().st_size > 100
    assert not (llama / "exp" / "RESULTS.md").exists(), "this is the file of the Whisper recipe"


@pytest.fixture
def calls(llama):
    """Return a function that runs the recipe, and returns the options of each asr.sh call."""
    encoder = llama / "exp" / "asr_base" / "valid.acc.ave.pth"
    encoder.parent.mkdir(parents=True)
    encoder.touch()
    return lambda *options: run_recorded(llama, "./run_speech_llama.sh", *options)[1]


def test_each_system_is_trained_from_its_start(calls):
    done = {call["--asr_tag"]: call for call in calls("--stop_stage", "12", "--asr_args", "--x 1")}
    rules = ("exact", "top_m", "threshold", "beam4_threshold")
    decodings = [f"conf/decode/{rule}.yaml" for rule in rules]
    ways = ("projection", "latent")
    expected = ["llama", *(f"llama_{way}_{tokens}" for way in ways for tokens in range(2, 7))]
    seeds = ("", "_seed2", "_seed3")
    expected += [f"llama_latent_4_{stage}{seed}" for stage in ("ce", "mwer") for seed in seeds]
    assert list(done) == expected
    base = done["llama"]
    assert base["--stage"] == "1" and base["--pretrained_model"].endswith(":encoder:encoder")
    assert base["--inference_configs"] == "conf/decode/baseline.yaml"
    for name, call in done.items():
        assert call["--train_set"] == "train_en_de" and call["--test_sets"] == "test test_de"
        assert call["--asr_args"].endswith("--x 1") and call["--stop_stage"] == "12"
        if name != "llama":
            assert call["--stage"] == "11" and call["--inference_configs"].split() == decodings
    assert done["llama_projection_6"]["--pretrained_model"] == "exp/asr_llama/valid.acc.ave.pth"
    for seed in ("", "_seed2"):
        stage = done[f"llama_latent_4_mwer{seed}"]
        assert stage["--asr_config"] == "conf/train_llama_latent_mwer.yaml"
        assert stage["--pretrained_model"] == "exp/asr_llama_latent_4/valid.loss.ave.pth"
        assert stage["--inference_asr_model"] == "valid.wer_best.ave.pth"
        assert ("--seed 2 " in stage["--asr_args"]) == bool(seed)


def test_stages_before_training_run_once(calls):
    (call,) = calls("--stage", "3", "--stop_stage", "10", "--heads", "llama_latent_2")
    assert (call["--asr_tag"], call["--stage"]) == ("llama", "3")
    stages = [call["--stage"] for call in calls("--stage", "12", "--stop_stage", "12")]
    assert set(stages) == {"12"} and len(stages) == 17


def test_stages_differ_only_in_mwer_and_heads_in_their_kind():
    mwer, ce = (config(FULL, f"train_llama_latent_{stage}") for stage in ("mwer", "ce"))
    options = mwer["model_conf"]
    assert options.pop("mwer_weight") > 0
    mwer["model_conf"] = {name: options[name] for name in options if "mwer" not in name}
    assert mwer.pop("best_model_criterion") != ce.pop("best_model_criterion")
    assert mwer == ce
    kinds = ("projection", "latent")
    configs = [config(FULL, f"train_llama_{kind}") for kind in kinds]
    assert tuple(entry["decoder_conf"].pop("heads") for entry in configs) == kinds
    assert configs[0] == configs[1]
    base = config(FULL, "train_llama")
    decoder = {k: v for k, v in configs[0]["decoder_conf"].items() if k != "heads_conf"}
    assert (base["encoder_conf"], base["decoder_conf"]) == (configs[0]["encoder_conf"], decoder)


CORPUS = "--minutes 0.2 --dev_utterances 2 --test_utterances 2 --second_minutes 0.2 --nj 1"
TINY = {"attention_heads": 2, "linear_units": 16, "num_blocks": 1}


def link_s2t_recipe(root: Path) -> Path:
    folder = link_recipe(root, "mini_synth/s2t1", without=("conf",))
    (root / "conf").symlink_to(ROOT / "conf")
    short = yaml.safe_load(SHORT_TRAINING)
    tiny = {"encoder_conf": TINY | {"output_size": 16, "cgmlp_linear_units": 16}}
    tiny |= {"decoder_conf": TINY}
    conf = ROOT / "egs" / "mini_synth" / "s2t1" / "conf"
    copy_config(conf / "train_s2t.yaml", folder / "conf", **short, **tiny)
    for search in ("beam5", "greedy"):
        copy_config(conf / f"decode_{search}.yaml", folder / "conf", maxlenratio=-8)
    return folder


def check_s2t_data(recipe: Path) -> None:
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


def shorten(script: Path, **lines: str) -> None:
    """Replace a linked script by a copy with other values in its lines ``name=...``."""
    text = script.read_text()
    for name, value in lines.items():
        text, count = re.subn(rf"^( *){name}\b.*$", rf"\g<1>{value}", text, flags=re.MULTILINE)
        assert count == 1, name
    script.unlink()
    write_script(script, text)


@pytest.mark.parametrize("is_short", [True, *full_length(False)])
def test_s2t_writes_espnets_nbest_lists_and_decodes_nothing_again(tmp_path, is_short):
    pytest.importorskip("espeakng_loader", reason="pip install espnet_medusa[demo]")
    recipe, options = link_s2t_recipe(tmp_path), ["--nbpe", "140", "--train_nj", "1", "--nj", "1"]
    searches, test_sets = ("beam5", "greedy"), {"test": "English", "test_de": "German"}
    if is_short:
        searches, test_sets = ("beam5",), {"test_de": "German"}
        lines = {"test_sets": "test_sets=(test_de)", "for search in": "for search in beam5; do"}
        shorten(recipe / "run.sh", **lines)
    data = f"{CORPUS} --second_dev_utterances 2"
    run(recipe, "./run.sh", *options, "--local_data_opts", data, status=0)
    check_s2t_data(recipe)
    for name, test_set in itertools.product(("beam5", "beam5_ctc"), test_sets):
        folders = [recipe / "exp" / "s2t_base" / tag / test_set for tag in ("espnet_beam5", name)]
        expected, lists = (nbest_lists(folder / "logdir") for folder in folders)
        assert lists.keys() == expected.keys() and len(lists) == 2
        for key in lists:
            assert lists[key][0] == expected[key][0] and len(lists[key][0]) == 5
            np.testing.assert_allclose(lists[key][1], expected[key][1], atol=1e-4)
    rows = (recipe / "exp" / "RESULTS.md").read_text().split("\n")
    systems = "espnet2.bin.s2t_inference", "ours, baseline", "ours, CTC drafts"
    for language, system in itertools.product(test_sets.values(), systems):
        decoded = [row for row in rows if row.startswith(f"|{language}|{system}|")]
        assert len(decoded) == len(searches) and all(row.endswith("|2/2|") for row in decoded)
    before = tree(recipe / "exp")
    done = run(recipe, "./run.sh", *options, "--stage", "12", "--stop_stage", "12", status=0)
    count = len(systems) * len(searches) * len(test_sets)
    assert done.stdout.count("complete already, nothing to do") == count
    assert tree(recipe / "exp") == before


def test_drafters_are_compared_although_utterances_failed(tmp_path, monkeypatch):
    drafters = link_recipe(tmp_path, "mini_synth/asr1")
    report = "case $2 in *.report) exit 3 ;; esac"
    write_script(tmp_path / "bin" / "python3", f"#!/bin/sh\n{report}\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(warm_python, "environment", lambda: dict(os.environ))
    options = "--stage", "5", "--stop_stage", "6"
    _, whole = run_recorded(drafters, "./run_drafters.sh", *options)
    for status, calls in ((3, len(whole)), (1, 1)):
        write_script(drafters / "asr.sh", f"{FAKE_ASR}exit {status}\n")
        run(drafters, "./run_drafters.sh", *options, status=status)
        assert len(recorded(drafters)) == calls
    run(drafters, "./run_drafters.sh", "--stage", "8", status=3)


FAKE_PYTHON = """\
#!/usr/bin/env bash
for last in "$@"; do :; done
case $3 in
split_keys) echo 1 ;;
run_jobs) echo "${last}" >> jobs ;;
merge_outputs) mkdir -p "${last}" && touch "${last}/text" && exit "$(cat status)" ;;
esac
"""


@pytest.fixture
def decode_s2t(tmp_path, monkeypatch):
    """Return a function that runs stage 12 without Python; it returns the number of decodings."""
    recipe = link_recipe(tmp_path, "mini_synth/s2t1")
    write_script(tmp_path / "bin" / "python3", FAKE_PYTHON)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(warm_python, "environment", lambda: dict(os.environ))
    for name in ("test", "test_de"):
        data = recipe / "dump" / "raw" / name
        data.mkdir(parents=True)
        (data / "utt2lang").write_text("u1 eng\n")
        (data / "wav.scp").write_text(f"u1 {name}.flac\n")
        (recipe / f"{name}.flac").write_text("audio")
    model = recipe / "exp" / "s2t_base" / "valid.acc.ave.pth"
    model.parent.mkdir(parents=True)
    model.write_text("weights")
    (recipe / "status").write_text("0")  # of each decoding

    def decode(*options: str, status: int = 0) -> int:
        (recipe / "jobs").write_text("")
        run(recipe, "./run.sh", "--stage", "12", "--stop_stage", "12", *options, status=status)
        return len((recipe / "jobs").read_text().splitlines())

    return recipe, decode


def test_s2t_decodes_again_what_has_changed(decode_s2t):
    recipe, decode = decode_s2t
    assert [decode(), decode()] == [12, 0]
    narrow = ["--inference_args", "--beam_size 2"]
    assert [decode(*narrow), decode(*narrow)] == [12, 0]
    assert decode() == 12
    (recipe / "test_de.flac").write_text("other audio")
    assert [decode(), decode()] == [6, 0]
    (recipe / "dump" / "raw" / "test" / "wav.scp").write_text("u2 test.flac\n")
    assert [decode(), decode()] == [6, 0]
    (recipe / "exp" / "s2t_base" / "valid.acc.ave.pth").write_text("trained further")
    (recipe / "status").write_text("3")
    assert [decode(status=3), decode(status=3)] == [12, 12], "the other sets are decoded"
    (recipe / "status").write_text("1")
    assert decode(status=1) == 1
    (recipe / "status").write_text("0")
    assert [decode(), decode()] == [12, 0], "a text alone is not complete"


def test_s2t_trains_no_heads_on_incomplete_labels(decode_s2t):
    recipe, _ = decode_s2t
    data = recipe / "dump" / "raw" / "train"
    data.mkdir()
    for name in ("wav.scp", "utt2lang", "text.prev", "text.ctc"):
        (data / name).write_text("u1 test.flac\n")
    (recipe / "status").write_text("3")
    options = "--heads", "recurrent", "--stage", "11", "--stop_stage", "12"
    done = run(recipe, "./run.sh", *options, status=3)
    assert "labels are incomplete, see above: no heads are trained" in done.stderr
    assert len((recipe / "jobs").read_text().splitlines()) == 1 + 12, "of the base model alone"
