"""Plans: texts equal those from audio, one encoder run, interrupted runs, figures by hand."""

import json
from pathlib import Path

import compare
import matplotlib.image
import pytest
import yaml
from cases import cases
from contestants.base import PLAN, Result, Timed
from contestants.plan_client import PlanClient
from contestants.ways import Way
from experiment import ENCODER, NO_CTC, make_experiment, write_noise
from figures import Inputs, agree, make_rows
from heads_folders import make_recipe
from inputs import list_utterances, read_utterances
from plan import read_plan
from recorded_calls import record_calls
from refusals import assert_refused, command_refused
from runner import Journal, Measurement

from espnet_medusa.decoding.search.statistics import DecodingStatistics
from espnet_medusa.inference.audio_batch import AudioBatch
from espnet_medusa.inference.speech2text import Speech2Text

SHARED = {"ctc_weight": 0.0, "lm_weight": 0.0, "maxlenratio": -20}
SEARCHES = {"greedy": {"search": "greedy"}, "beam 3": {"beam_size": 3, "nbest": 3}}
DRAFTERS = {
    "baseline": {"experiment": "exp/asr_base", "options": {"draft_depth": 0}},
    "heads": {"experiment": "exp/asr_recurrent", "curve": "recurrent", "hours": 0.5},
    "CTC": {"experiment": "exp/asr_base", "options": {"drafter": "ctc"}},
    "both": {"experiment": "exp/asr_recurrent", "options": {"drafter": "ctc+heads"}},
    "a model": {
        "experiment": "exp/asr_base", "options": {"drafter": "model", "draft_model": "exp/other"},
    },
    "tuned": {"experiment": "exp/asr_recurrent", "configs": {"greedy": "tuned.yaml"}},
    "untrained": {"experiment": "exp/asr_block"},
}  # fmt: skip


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = make_recipe(tmp_path_factory.mktemp("recipe"))
    make_experiment(folder / "exp" / "other", seed=5)
    (folder / "tuned.yaml").write_text("draft_depth: 2\nlookahead: auto\n")
    return folder


@pytest.fixture
def command(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(recipe)

    def run(*options, **changes):
        plan = {"title": "Who", "options": SHARED, "searches": SEARCHES, "drafters": DRAFTERS}
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan | changes, sort_keys=False))
        words = ["--plan", tmp_path / "plan.yaml", "--data_dir", "data", "--threads", 1]
        words += ["--output", tmp_path / "out" / "results.md", "--cleaner", "none", *options]
        compare.main([*map(str, words)])
        return json.loads((tmp_path / "out" / "results.json").read_text())["rows"]

    return run


def journal_lines(tmp_path):
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_rows_decode_as_from_samples(command, recipe, tmp_path):
    rows = command("--num_utterances", 2)
    assert len(rows) == 11  # six drafters, one of them in one search
    assert all(row.get("same", row.get("same_nbest")) == "2/2" for row in rows)
    lines = journal_lines(tmp_path)
    for row in rows:
        drafter = DRAFTERS[row["contestant"]]
        options = SHARED | SEARCHES[row["search"]] | drafter.get("options", {})
        if row["contestant"] == "tuned":
            options |= {"draft_depth": 2, "lookahead": "auto"}
        folder = recipe / drafter["experiment"]
        alone = Speech2Text(folder / "config.yaml", folder / "model.pth", **options)
        written = {
            line["names"][0]: line["timed"]["results"][0]
            for line in lines
            if all(line["way"][name] == row[name] for name in ("contestant", "search"))
        }
        calls, utterances = 0, read_utterances(recipe / "data")
        for utterance in (one for one in utterances if one.id in written):
            results = alone(utterance.speech)
            assert results and written[utterance.id]["text"] == results[0][0]
            n_best = [ids for ids, _ in written[utterance.id]["nbest"]]
            assert n_best == [[*ids] for _, _, ids, _ in results]
            calls += alone.statistics.decoder_calls
        if row["contestant"] != "tuned":  # its draft length depends on the clock
            assert row["calls"] == calls
    model = {(row["search"], row["contestant"]): row for row in rows}["greedy", "a model"]
    assert model["draft_calls"] > 0 and 0 < model["draft_ms"] < 1000 * model["decoder_seconds"]
    text = (tmp_path / "out" / "results.md").read_text()
    assert "Left out: untrained: exp/asr_block/config.yaml: not there" in text
    assert "## beam 3\n" in text and "|same text|" in text and "|same n-best|" in text
    assert min(matplotlib.image.imread(tmp_path / "out" / "results.png").shape[:2]) > 200


def test_the_encoder_runs_once_for_all_rows(command, monkeypatch):
    encoded = record_calls(monkeypatch, AudioBatch, "_encode", lambda _, encoder: encoder)
    command("--searches", "greedy", "--drafters", "heads", "CTC", "a model", "--no_seconds")
    assert len({*encoded}) == 2  # the draft model has its own
    assert [encoded.count(encoder) for encoder in {*encoded}] == [4, 4]


def test_an_interrupted_run_continues(command, monkeypatch):
    options = "--searches", "greedy", "--num_utterances", 2, "--drafters"
    first = command(*options, "heads")
    decoded = record_calls(monkeypatch, PlanClient, "decode", lambda _, way, names: way.contestant)
    assert command(*options, "heads") == first and not decoded
    command(*options, "CTC")
    assert decoded == 3 * ["CTC"]  # the first utterance twice, for warm-up
    decoded.clear()
    changed = {**DRAFTERS, "heads": {**DRAFTERS["heads"], "options": {"draft_depth": 1}}}
    command(*options, "heads", drafters=changed)
    assert decoded == 3 * ["heads"]


def test_texts_without_times_and_in_batches(command, tmp_path):
    rows = command("--searches", "greedy", "--no_seconds", "--batch_sizes", 1, 3)
    text = (tmp_path / "out" / "results.md").read_text()
    assert " ms" not in text.split("\n- ")[0] and "P;" not in text and "speed" not in text[:400]
    alone, together = ([row for row in rows if row["batch_size"] == size] for size in (1, 3))
    for pair in zip(alone, together, strict=True):
        assert len({(row["contestant"], str(row["wer"]), row["same"]) for row in pair}) == 1
    assert "heads, 3 together" in text


def test_audio_beyond_the_window_is_left_out(command, recipe, tmp_path):
    data = recipe / "long"
    data.mkdir()
    write_noise(data / "long.wav", 2.5)
    (data / "wav.scp").write_text("a data/0.wav\nz long/long.wav\n")
    (data / "text").write_text("a ab\nz cd\n")
    rows = command("--searches", "greedy", "--drafters", "heads", "--data_dir", "long",
                   "--batch_sizes", 2)  # fmt: skip
    assert [row["inputs"] for row in rows] == [1, 1]
    assert "Longer than the models' window: z." in (tmp_path / "out" / "results.md").read_text()


def test_rows_with_another_window_or_padding_have_their_own_encoder(command, recipe, tmp_path):
    """Setting a window in the plan equals training with it, for the same weights."""
    for window in ("whisper", "audio"):
        encoder = ENCODER | {"window": window}
        make_experiment(recipe / "exp" / window, encoder_conf=encoder, model_conf=NO_CTC)
    drafters = {
        "padded": {"experiment": "exp/whisper"},
        "cut": {"experiment": "exp/whisper", "window": "audio"},
        "trained": {"experiment": "exp/audio"},
        "merged": {"experiment": "exp/whisper", "options": {"encoder_padding": "merged"}},
    }
    options = SHARED | {"maxlenratio": -12, "draft_depth": 0}
    command("--searches", "greedy", drafters=drafters, options=options)
    nbest = {}
    for line in journal_lines(tmp_path):
        row = nbest.setdefault(line["way"]["contestant"], {})
        row[line["names"][0]] = line["timed"]["results"][0]["nbest"]
    assert nbest["cut"] == nbest["trained"] != nbest["padded"]
    assert nbest["merged"] not in (nbest["padded"], nbest["cut"])


def test_a_grid_of_ctc_thresholds(command):
    """CTC first: an infinite entropy needs no calls; a likelihood of 0 needs one."""
    grid = {"ctc_likelihood_threshold": [None, 0.0, 1.5]}
    grid["ctc_entropy_threshold"] = [None, 0.5, float("inf")]
    model = {"experiment": "exp/asr_recurrent"}
    drafters = {
        "baseline": model | {"options": {"draft_depth": 0}},
        "CTC first": model | {"options": {"drafter": "ctc"}, "grid": grid},
    }
    rows = command("--searches", "greedy", drafters=drafters, options=SHARED | {"maxlenratio": -60})
    rows = {row["contestant"].removeprefix("CTC first"): row for row in rows}
    assert len(rows) == 1 + 3 * 3
    plain, exact = rows["baseline"], rows[""]
    unlikely = rows[", ctc_likelihood_threshold 1.5"]
    assert exact["same"] == unlikely["same"] == "4/4" and exact["wer"] == plain["wer"]
    assert plain["calls"] >= exact["calls"] > 0
    one_call = rows[", ctc_likelihood_threshold 0.0"]
    assert (one_call["calls"], one_call["no_call"]) == (4, 0)
    for name, row in rows.items():
        if name.endswith("ctc_entropy_threshold inf"):
            assert (row["calls"], row["no_call"]) == (0, 100)
            assert row["wer"] == one_call["wer"]  # the text of CTC


@cases(
    ({}, ["--searches", "beam 7"], "searches: 'beam 7'"),
    ({}, ["--drafters", "nobody"], "drafters: 'nobody'"),
    ({"drafters": {"x": {"experiment": "exp/none"}}}, [], "exp/none/config.yaml: no such file"),
    ({"drafters": {"x": {"experiment": "e", "hours": 1}}}, [], "x: curve and hours; allowed"),
    ({"drafters": {"x": {"experiment": "e", "heads": 1}}}, [], "unknown option 'heads'"),
    ({"drafters": {"x": {}}}, [], "x: {}; a mapping"),
    ({"searches": {}}, [], "searches: {}; a mapping"),
)
def test_unusable_plans_are_refused(changes, options, message, command, capsys):
    with command_refused(capsys, message):
        command(*options, **changes)


def test_plans_of_the_recipes_can_be_read():
    root = Path(compare.__file__).resolve().parents[1]
    paths = sorted(root.glob("egs/*/asr1/conf/drafters/*.yaml"))
    assert len(paths) == 16
    for path in paths:
        assert next(iter(read_plan(path).drafters.values())).options == {"draft_depth": 0}


def nbest(*hypotheses):
    text = hypotheses[0][0] if hypotheses else ""
    return Result(text, nbest=[([*map(ord, text)], score) for text, score in hypotheses])


@cases(
    ([("x", -1.0002), ("y", -2.0)], False, True),
    ([("x", -1.01), ("y", -2.0)], False, False),
    ([("y", -2.0), ("x", -1.0)], False, True),  # the order does not count
    ([("y", -1.0), ("x", -2.0)], False, False),
    ([("x", -1.0)], False, False),
    ([("x", -9.0)], True, True),
    ([("z", -1.0)], True, False),
    ([], True, False),
)
def test_equal_outputs(hypotheses, greedy, same):
    assert agree(nbest(*hypotheses), nbest(("x", -1.0), ("y", -2.0)), greedy) is same


def test_rows_by_hand():
    journal = Journal()

    def measured(name, texts, seconds, calls, drafted=()):
        for utterance, text, second, call in zip("abc", texts, seconds, calls, strict=True):
            cost = DecodingStatistics(decoder_calls=call, nodes=3 * call, tokens=6)
            cost.draft_seconds = second / 4
            for counts in drafted:
                cost.count_drafts(*counts)
            timed = Timed([Result(text, counts=vars(cost))], 0.5, second)
            journal.add(Measurement(Way(name, "", "greedy"), (utterance,), 0, timed))

    measured("none", ["Mr. Ab, cd", "ef", "g"], [1.0, 2.0, 6.0], [6, 6, 6])
    measured("heads", ["Mr. Ab, cd", "ef", "x"], [0.5, 1.0, 3.0], [2, 1, 3], [(2, 1)])
    references = {"a": "mister ab cd", "b": "ef", "c": "g"}
    ways = [Way("none", "", "greedy"), Way("heads", "", "greedy")]
    first, row = make_rows(journal, ways, Inputs(PLAN, "abc", references, greedy=["greedy"]))
    assert (first["wer"]["value"], first["same"], "speed" in first) == (0.0, "3/3", False)
    assert row["wer"]["value"] == pytest.approx(100 / 5)
    assert (row["calls"], row["fewer_calls"], row["nodes_per_call"]) == (6, 3.0, 3.0)
    assert row["tokens_per_call"]["value"] == 3.0
    assert row["accepted"] == [100.0, 0.0] and row["draft_calls"] is None
    assert (row["decoder_ms"], row["decoder_seconds"], row["draft_ms"]) == (1000, 4.5, 375)
    assert (row["encoder_ms"], row["speed"]["value"], row["same"]) == (500, 2.0, "2/3")


def test_utterances_need_references(tmp_path):
    for name in ("wav.scp", "text"):
        (tmp_path / name).write_text("a data/0.wav\n")
    (tmp_path / "text").write_text("b x\n")
    assert_refused("text: a: missing", list_utterances, tmp_path)
    (tmp_path / "segments").write_text("a a 0 1\n")
    assert_refused("has segments", list_utterances, tmp_path)
