"""Drafters from one run of the encoder: what they would have written alone; resumed; compared."""

import json

import matplotlib.image
import pytest
import who_drafts
import yaml
from experiment import make_experiment, read_lines, write_noise
from heads_recipe import make_recipe
from inputs import list_utterances, read_utterances
from who_drafts_plan import Drafter, Way, read_plan
from who_drafts_report import Measured, agree, make_rows

from espnet_medusa.errors import InputError
from espnet_medusa.inference.audio_batch import AudioBatch
from espnet_medusa.inference.journal import Decoded, NBestEntry
from espnet_medusa.inference.speech2text import Speech2Text
from espnet_medusa.search.statistics import DecodingStatistics

SHARED = {"ctc_weight": 0.0, "lm_weight": 0.0}
SEARCHES = {"greedy": {"search": "greedy"}, "beam 3": {"beam_size": 3, "nbest": 3}}
DRAFTERS = {
    "no drafts": {"experiment": "exp/asr_base", "options": {"draft_depth": 0}},
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
    folder = make_recipe(tmp_path_factory.mktemp("recipe"), num_utterances=4)
    make_experiment(folder / "exp" / "other", seed=5)
    (folder / "tuned.yaml").write_text("draft_depth: 2\nlookahead: cost\n")
    return folder


@pytest.fixture
def command(recipe, tmp_path, monkeypatch):
    """Runs the command in the recipe's folder; returns the rows that it writes."""
    monkeypatch.chdir(recipe)

    def run(*options, **changes):
        plan = {"title": "Who", "options": SHARED, "searches": SEARCHES, "drafters": DRAFTERS}
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan | changes, sort_keys=False))
        words = [tmp_path / "plan.yaml", "--data_dir", "data", "--output_dir", tmp_path / "out"]
        who_drafts.main([*map(str, [*words, "--threads", 1, "--cleaner", "none", *options])])
        return json.loads((tmp_path / "out" / "results.json").read_text())["rows"]

    return run


def test_everybody_decodes_as_from_samples(command, recipe, tmp_path):
    rows = command()
    assert len(rows) == 11  # six drafters, one of them in one search
    assert all(row["same"] == row["utterances"] == 4 for row in rows)
    for row in rows:
        drafter = DRAFTERS[row["drafter"]]
        options = SHARED | SEARCHES[row["search"]] | drafter.get("options", {})
        if row["drafter"] == "tuned":
            options |= {"draft_depth": 2, "lookahead": "cost"}
        folder = recipe / drafter["experiment"]
        alone = Speech2Text(folder / "config.yaml", folder / "model.pth", **options)
        kept = tmp_path / "out" / who_drafts.slug(row["search"]) / who_drafts.slug(row["drafter"])
        calls = 0
        for utterance in read_utterances(recipe / "data"):
            results = alone(utterance.speech)
            assert results
            for rank, (text, _, ids, _) in enumerate(results, 1):
                files = kept / f"{rank}best_recog"
                assert read_lines(files / "text")[utterance.id] == text
                assert read_lines(files / "token_int")[utterance.id] == " ".join(map(str, ids))
            calls += alone.statistics.decoder_calls
        if row["drafter"] != "tuned":  # what pays depends on the clock
            assert row["calls"]["value"] == calls / 4
    by_name = {(row["search"], row["drafter"]): row for row in rows}
    model = by_name["greedy", "a model"]
    assert model["draft_calls"] > 0 and 0 < model["draft_ms"] < 1000 * model["seconds"]
    text = (tmp_path / "out" / "results.md").read_text()
    assert "Left out: untrained (exp/asr_block/config.yaml: not there)" in text
    assert "## beam 3\n" in text and "|same n-best|" in text and "|same text|" in text
    assert min(matplotlib.image.imread(tmp_path / "out" / "results.png").shape[:2]) > 200


def test_one_run_of_the_encoder_for_all(command, monkeypatch):
    encoded = []
    encode = AudioBatch._encode

    def count(self, encoder):
        encoded.append(encoder)
        return encode(self, encoder)

    monkeypatch.setattr(AudioBatch, "_encode", count)
    command("--searches", "greedy", "--drafters", "heads", "CTC", "a model", "--texts")
    assert len({*encoded}) == 2  # the draft model has its own
    assert [encoded.count(encoder) for encoder in {*encoded}] == [4, 4]


def test_an_interrupted_run_goes_on(command, monkeypatch):
    first = command("--searches", "greedy", "--drafters", "heads", "--limit", 2)
    decode, decoded = who_drafts.Contestant.decode, []

    def remember(self, audio, memory, frames):
        decoded.append(self.way.name)
        return decode(self, audio, memory, frames)

    monkeypatch.setattr(who_drafts.Contestant, "decode", remember)
    again = command("--searches", "greedy", "--drafters", "heads", "--limit", 2)
    assert again == first and not decoded
    command("--searches", "greedy", "--drafters", "CTC", "--limit", 2)
    assert decoded == 3 * ["CTC"]  # the first utterance twice, to warm up
    decoded.clear()
    changed = {**DRAFTERS, "heads": {**DRAFTERS["heads"], "options": {"draft_depth": 1}}}
    command("--searches", "greedy", "--drafters", "heads", "--limit", 2, drafters=changed)
    assert decoded == 3 * ["heads"]


def test_texts_alone_have_no_times_and_batches_change_nothing(command, tmp_path):
    alone = command("--texts", "--searches", "greedy", "--report", tmp_path / "out/results.md")
    text = (tmp_path / "out" / "results.md").read_text()
    assert " ms" not in text and "Decoder" not in text
    for journal in (tmp_path / "out").rglob("journal.jsonl"):
        journal.unlink()
    together = command("--texts", "--searches", "greedy", "--batch_size", 3)
    names = ("drafter", "wer", "same")
    assert [[row[name] for name in names] for row in together] == [
        [row[name] for name in names] for row in alone
    ]


def test_audio_beyond_the_window_is_left_out(command, recipe, tmp_path):
    data = recipe / "long"
    data.mkdir()
    write_noise(data / "long.wav", 2.5)
    (data / "wav.scp").write_text("a data/0.wav\nz long/long.wav\n")
    (data / "text").write_text("a ab\nz cd\n")
    rows = command("--searches", "greedy", "--drafters", "heads", "--data_dir", "long",
                   "--batch_size", 2)  # fmt: skip
    assert [row["utterances"] for row in rows] == [1, 1]
    assert "Longer than the models read: z." in (tmp_path / "out" / "results.md").read_text()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, ["--searches", "beam 7"], "searches: 'beam 7'"),
        ({}, ["--drafters", "nobody"], "drafters: 'nobody'"),
        ({"drafters": {"x": {"experiment": "exp/none"}}}, [], "exp/none/config.yaml: no such file"),
        ({"drafters": {"x": {"experiment": "e", "hours": 1}}}, [], "x: curve and hours; allowed"),
        ({"drafters": {"x": {"experiment": "e", "heads": 1}}}, [], "unknown option 'heads'"),
        ({"drafters": {"x": {}}}, [], "x: {}; a mapping"),
        ({"searches": {}}, [], "searches: {}; a mapping"),
        (
            {"drafters": {**DRAFTERS, "alien": {"experiment": "exp/other"}}},
            ["--searches", "greedy"], "alien: its encoder is not that of no drafts",
        ),
    ],
)  # fmt: skip
def test_unusable_plans_are_refused(command, capsys, changes, options, message):
    with pytest.raises(SystemExit):
        command(*options, **changes)
    assert message in capsys.readouterr().err


def test_plans_of_the_recipe_can_be_read():
    root = who_drafts.Path(who_drafts.__file__).resolve().parents[1]
    paths = sorted(root.glob("egs/*/asr1/conf/who_drafts/*.yaml"))
    assert len(paths) == 10
    for path in paths:
        plan = read_plan(path)
        assert next(iter(plan.drafters.values())).options == {"draft_depth": 0}


def nbest(*hypotheses):
    found = [NBestEntry(text, [], [*map(ord, text)], repr(score)) for text, score in hypotheses]
    return Decoded("a", found)


@pytest.mark.parametrize(
    ("found", "greedy", "same"),
    [
        ([("x", -1.0), ("y", -2.0)], False, True),
        ([("x", -1.0002), ("y", -2.0)], False, True),
        ([("x", -1.01), ("y", -2.0)], False, False),
        ([("y", -2.0), ("x", -1.0)], False, True),  # a list is not its order but its scores
        ([("y", -1.0), ("x", -2.0)], False, False),
        ([("x", -1.0)], False, False),
        ([("x", -1.0), ("z", -2.0)], False, False),
        ([("x", -9.0)], True, True),
        ([("z", -1.0)], True, False),
        ([], True, False),
        ([], False, False),
    ],
)
def test_what_is_the_same(found, greedy, same):
    expected = nbest(("x", -1.0), ("y", -2.0))
    assert agree(nbest(*found), expected, greedy) is same


def test_rows_by_hand():
    def measured(name, texts, seconds, calls, drafted=()):
        way = Way("greedy", name, Drafter("exp"), {"search": "greedy"})
        decoded = []
        for text, second, call in zip(texts, seconds, calls, strict=True):
            cost = DecodingStatistics(
                decoder_calls=call, nodes=3 * call, tokens=6, decoder_seconds=second,
                total_seconds=second + 0.5, draft_seconds=second / 4,
            )  # fmt: skip
            for one in drafted:
                cost.count_drafts(*one)
            decoded.append(Decoded("a", [NBestEntry(text, [], [], "0.0")], cost))
        return Measured(way, decoded)

    plain = measured("none", ["Mr. Ab, cd", "ef", "g"], [1.0, 2.0, 6.0], [6, 6, 6])
    drafts = measured("heads", ["Mr. Ab, cd", "ef", "x"], [0.5, 1.0, 3.0], [2, 1, 3], [(2, 1)])
    first, row = make_rows([plain, drafts], ["mister ab cd", "ef", "g"], "whisper_en")
    assert (first.wer.value, first.same, first.speed) == (0.0, 3, None)
    assert row.wer.value == pytest.approx(100 / 5)
    assert (row.calls.value, row.tokens_per_call.value, row.nodes_per_call) == (2.0, 3.0, 3.0)
    assert row.accepted == [100.0, 0.0] and row.draft_calls is None
    assert (row.decoder_ms, row.seconds, row.draft_ms, row.encoder_ms) == (1000, 4.5, 375, 500)
    assert (row.speed.value, row.same, row.utterances) == (2.0, 2, 3)


def test_utterances_need_references(recipe, tmp_path):
    for name in ("wav.scp", "text"):
        (tmp_path / name).write_text("a data/0.wav\n")
    (tmp_path / "text").write_text("b x\n")
    with pytest.raises(InputError, match="text: a: missing"):
        list_utterances(tmp_path)
    (tmp_path / "segments").write_text("a a 0 1\n")
    with pytest.raises(InputError, match="has segments"):
        list_utterances(tmp_path)
