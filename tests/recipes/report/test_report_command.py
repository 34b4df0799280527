"""The report of small experiments: cells, figures, notes and refusals."""

import shutil

import matplotlib.image
import pytest
import torch
import yaml
from cases import cases
from exp_folders import error_of, write_decoding, write_espnet_decoding, write_eta, write_score

from espnet_medusa.bin import report
from espnet_medusa.decoding.search.statistics import DecodingStatistics, write_statistics
from espnet_medusa.recipes.report.paper_tables import included_markdown
from espnet_medusa.recipes.report.plan import IncludedFile

BASELINE, TYPICAL = "baseline_asr_model_valid.acc.ave", "typical_asr_model_valid.acc_heads.ave"


@pytest.fixture
def exp(tmp_path):
    """Vanilla: 4 utterances in 2 s each; linear: the first three, in 1 s each."""
    exp = tmp_path / "exp"
    vanilla, linear = exp / "asr_vanilla", exp / "asr_linear"
    folder = write_decoding(vanilla, BASELINE, "test", dict.fromkeys("abcd", 2.0))
    write_score(folder, "wer", [(9, 1, 0, 0), (8, 0, 2, 1), (10, 0, 0, 0), (10, 0, 0, 0)])
    write_score(folder, "cer", [(48, 2, 0, 0), (50, 0, 0, 0), (50, 0, 0, 0), (50, 0, 0, 0)])
    weights = {"encoder.weight": torch.zeros(1000, 2000)}
    torch.save(weights, vanilla / "valid.acc.ave.pth")
    folder = write_decoding(linear, TYPICAL, "test", dict.fromkeys("abc", 1.0))
    write_score(folder, "wer", [(5, 5, 0, 0), (10, 0, 0, 0), (10, 0, 0, 0)])
    weights["decoder.heads.heads.0.weight"] = torch.zeros(500, 1000)
    weights["decoder.original_last_layer.fc1.weight"] = torch.zeros(1000, 1000)
    torch.save(weights, linear / "valid.acc_heads.ave.pth")
    return exp


def plan(**changes):
    systems = {
        name: {"name": name.capitalize(), "exp": f"asr_{name}", "decoding": decoding}
        for name, decoding in (("vanilla", "baseline"), ("linear", "typical"), ("block", "typical"))
    }
    table = {"title": "Table I", "test_sets": {"test": "test"}, "baseline": "vanilla"}
    table |= {"systems": systems, "figure": {"title": "Fig. 2", "systems": ["linear", "block"]}}
    return {"title": "Report", "tables": [{**table, **changes}]}


def write_report(tmp_path, exp, content, *options, dirs=None):
    """Report on all experiments in a folder, or on ``dirs``."""
    config, output = tmp_path / "report.yaml", tmp_path / "out" / "REPORT.md"
    config.write_text(yaml.safe_dump(content, sort_keys=False))
    dirs = map(str, dirs or sorted(path for path in exp.iterdir() if path.is_dir()))
    report.main([*dirs, "--config", str(config), "--output", str(output), *options])
    return output.read_text()


def rows(text, label="test"):
    lines = [line.strip("|").split("|") for line in text.splitlines()]
    return [cells for cells in lines if cells[0] == label]


def test_cells(tmp_path, exp):
    text = write_report(tmp_path, exp, plan())
    assert "|test set|system|WER [%]|CER [%]|speedup|parameters [M]|" in text
    assert rows(text) == [
        # WER: 4 errors of 40 words; CER: 2 of 200 characters.
        ["test", "Vanilla", "10.00", "1.00", "1.00", "2.00"],
        # Over a, b, c: 6 s / 3 s. The teacher's copy of the last layer is no part of the system.
        ["test", "Linear", "16.67", "-", "2.00", "2.50 (heads 0.50)"],
    ]
    assert "- Not run: test: Block.\n" in text
    assert "Published" not in text and "at hand" not in text
    image = tmp_path / "out" / "images" / "report_speedup_1.png"
    assert "![Fig. 2](<images/report_speedup_1.png>)" in text
    assert min(matplotlib.image.imread(image).shape[:2]) > 200


def test_chosen_columns(tmp_path, exp):
    folder = write_decoding(exp / "asr_block", TYPICAL, "test", dict.fromkeys("abc", 1.0), calls=4)
    write_score(folder, "wer", [(10, 0, 0, 0)] * 3)
    write_eta(folder, dict.fromkeys("abc", 10), 10)
    columns = ["eta", "tokens_per_call", "calls", "decoder_rtf", "decoder_speedup"]
    text = write_report(tmp_path, exp, plan(columns=columns))
    assert "|test set|system|eta|tokens per call|decoder calls|decoder RTF|" in text
    assert rows(text) == [
        # The first two are not scored: no words, no eta.
        ["test", "Vanilla", "-", "1.00", "40", "0.1000", "1.00"],
        ["test", "Linear", "-", "1.00", "30", "0.0500", "2.00"],
        ["test", "Block", "0.40", "2.50", "12", "0.0500", "2.00"],
    ]
    assert "Speedup over: Vanilla." in text
    for note in ("Eta:", "Tokens per call:", "Decoder calls:", "Decoder RTF:", "Decoder speedup:"):
        assert note in text
    assert "WER" not in text and "Parameters:" not in text and "Speedup:" not in text
    text = write_report(tmp_path, exp, plan(columns=["eta", "wer"]))
    assert rows(text)[2] == ["test", "Block", "0.40", "0.00"]
    assert "Speedup over" not in text and "Tokens per call" not in text
    content = plan(columns=["eta", "wer"])
    content["tables"][0]["systems"]["block"]["decoding"] = "nonesuch"
    text = write_report(tmp_path, exp, content)
    # No decoding has words counted, so there is no column of eta.
    assert rows(text) == [["test", "Vanilla", "10.00"], ["test", "Linear", "16.67"]]
    assert "|test set|system|WER [%]|\n" in text and "- Not run: test: Block.\n" in text


def test_columns_of_drafters(tmp_path, exp):
    counts = dict(nodes=20, drafted=[4, 4], accepted=[4, 1], draft_calls=3, draft_seconds=0.01)
    write_decoding(exp / "asr_block", TYPICAL, "test", dict.fromkeys("abc", 0.5), calls=4, **counts)
    columns = ["calls_per_utterance", "nodes_per_call", "acceptance", "draft_calls"]
    columns += ["draft_ms", "latency", "same_text"]
    text = write_report(tmp_path, exp, plan(columns=columns))
    titles = "calls per utterance|nodes per call|acceptance [%]|draft model's calls|drafting [ms]"
    assert f"|test set|system|{titles}|latency [ms]|same text|" in text
    assert rows(text) == [
        ["test", "Vanilla", "10.00", "-", "-", "-", "-", "2000 (p90 2000)", "4/4"],
        ["test", "Linear", "10.00", "-", "-", "-", "-", "1000 (p90 1000)", "3/3"],
        ["test", "Block", "4.00", "5.00", "62.5", "3.00", "10.0", "500 (p90 500)", "3/3"],
    ]
    assert "- Same text as: Vanilla." in text and "Speedup over" not in text


def test_decodings_of_espnets_command_and_search(tmp_path, exp):
    folder = write_espnet_decoding(exp / "asr_block", "typical", "test", [{"a": 1.5, "b": 0.5}])
    write_score(folder, "wer", [(9, 1, 0, 0), (9, 1, 0, 0)])
    # ESPnet's search under our command: seconds, but no calls.
    counts = DecodingStatistics(total_seconds=4.0, audio_seconds=1.0)
    statistics = exp / "asr_linear" / TYPICAL / "test" / "statistics.json"
    write_statistics(statistics, dict.fromkeys("abc", counts))
    columns = ["wer", "cer", "eta", "tokens_per_call", "calls", "calls_per_utterance"]
    columns += ["nodes_per_call", "acceptance", "latency", "decoder_rtf", "decoder_speedup"]
    columns += ["speedup", "same_text"]
    _, linear, block = rows(write_report(tmp_path, exp, plan(columns=columns)))
    nothing = ["-"] * 3  # of calls; no row has eta, nodes or acceptance
    assert linear[2:] == ["16.67", "-", *nothing, "4000 (p90 4000)", "-", "-", "0.50", "3/3"]
    assert block[2:] == ["10.00", "-", *nothing, "1000 (p90 1400)", "-", "-", "2.00", "2/2"]


def test_figures_of_each_kind(tmp_path, exp):
    write_eta(exp / "asr_vanilla" / BASELINE / "test", dict.fromkeys("abcd", 9), 9)
    write_eta(exp / "asr_linear" / TYPICAL / "test", dict.fromkeys("abc", 9), 9)
    points = {"linear": {"typical": {10: "linear"}}, "block": {"typical": {10: "block"}}}
    pairs = {"CTC": {"greedy": {"1 epoch": {"calls": "linear", "wer": "vanilla"}}}}
    figures = {
        "wer_against_eta": {"points": "K, in tokens", "groups": points},
        "calls_per_word": {"groups": {"heads": {"linear": "linear"}}},
        "calls_against_wer": {"points": "training", "groups": pairs, "wer_of": "CTC"},
        "wer_against_latency": {"points": "K, in tokens", "groups": points},
        "wer_against_calls": {"points": "K, in tokens", "groups": points},
    }
    content = plan() | {"tables": []}
    for kind, figure in figures.items():
        content["tables"] += plan(figure={"kind": kind, "title": f"By {kind}", **figure})["tables"]
    text = write_report(tmp_path, exp, content)
    for number, kind in enumerate(figures, 1):
        image = f"images/report_{kind}_{number}.png"
        assert f"![By {kind}](<{image}>)" in text
        assert min(matplotlib.image.imread(tmp_path / "out" / image).shape[:2]) > 200
    assert "Labels of points: K, in tokens." in text
    assert "Labels of points: training." in text


def test_included_sections_and_figures_of_unscored_decodings(tmp_path, exp):
    measured = tmp_path / "measured" / "who.md"
    files = {"Who": str(measured), "Else": "nowhere.md"}
    figure = {"kind": "calls_per_word", "title": "F", "groups": {"heads": {"linear": "linear"}}}
    included = [{"title": title, "file": name} for title, name in files.items()]
    content = plan(figure=figure) | {"included": included}
    measured.parent.mkdir()
    measured.write_text("# Who drafts\n\n3 utterances.\n\n## greedy\n\n|a|\n\n![x](who.png)\n")
    text = write_report(tmp_path, exp, content)
    assert "\nNot drawn: F (not run, or not scored).\n" in text and text.count("![") == 1
    assert "## Who\n\n3 utterances.\n\n### greedy\n\n|a|\n\n![x](../measured/who.png)\n" in text
    assert "\nNot measured: Else (nowhere.md).\n" in text and "# Who drafts" not in text


@cases(
    ("a.png", "../in/a.png"), ("a.md#b", "../in/a.md#b"), ('a.md "title"', '../in/a.md "title"'),
    ("<img/a b.png>", "<../in/img/a b.png>"), ("<a.png>", "<../in/a.png>"), ("#a", "#a"),
    ("mailto:me@x.org", "mailto:me@x.org"), ("<https://x.org/a b>", "<https://x.org/a b>"),
    ("http://x.org", "http://x.org"),
)  # fmt: skip
def test_links_of_included_sections_are_relative_to_the_report(link, expected, tmp_path):
    path = tmp_path / "in" / "a.md"
    path.parent.mkdir()
    path.write_text(f"![a]({link}), [b](b.md)\n")
    text = included_markdown(IncludedFile("T", str(path)), tmp_path / "out" / "report.md")
    assert text == f"## T\n\n![a]({expected}), [b](../in/b.md)\n"


def test_a_note_names_the_common_utterances_of_a_speedup(tmp_path, exp):
    write_decoding(exp / "asr_linear", TYPICAL, "other", {"a": 1.0, "z": 9.0})
    write_decoding(exp / "asr_vanilla", BASELINE, "other", {"a": 3.0})
    text = write_report(tmp_path, exp, plan(test_sets={"other": "test"}))
    assert rows(text)[1][2] == "3.00"
    note = "test, Linear: speedup over the 1 of 2 utterances that the baseline also decoded."
    assert note in text


def test_without_the_baseline_there_is_no_speedup(tmp_path, exp):
    content = plan()
    content["tables"][0]["systems"]["vanilla"]["decoding"] = "nonesuch"
    text = write_report(tmp_path, exp, content)
    assert rows(text) == [["test", "Linear", "16.67", "2.50 (heads 0.50)"]]
    assert "- Not run: test: Vanilla; Block.\n" in text
    assert "\nNot drawn: Fig. 2 (no utterances to compare).\n" in text


def printed(**cells: str) -> dict:
    return {"linear": {"name": "As printed", "parameters": "1561", "cells": cells}}


def publish(tmp_path, label, **changes):
    """Write published figures of Linear on one test set; return the option that names the file."""
    table = {
        "source": "A paper, Table I", "model": "Whisper large-v2", "data": "on a GPU",
        "measures": ["wer", "speedup", "latency_s"], "systems": printed(**{label: "4.10 - 8.05"}),
        "statements": [{"text": "twice as fast", "source": "the abstract"}],
    }  # fmt: skip
    path = tmp_path / "published.yaml"
    path.write_text(yaml.safe_dump({"paper": table | changes}))
    return "--published", str(path)


def test_published_figures_are_next_to_ours(tmp_path, exp):
    content = plan(published="paper", model="Whisper base")
    text = write_report(tmp_path, exp, content, *publish(tmp_path, "test"))
    assert rows(text) == [
        ["test", "Vanilla", "10.00", "-", "1.00", "1.00", "2.00", "-"],
        ["test", "Linear", "16.67", "4.10", "-", "2.00", "2.50 (heads 0.50)", "1561"],
    ]
    for note in (
        "- Published: A paper, Table I (on a GPU).",
        "- Models: published Whisper large-v2; ours Whisper base.",
        "- Also published: twice as fast (the abstract).",
        "Only our values are drawn.",
        "|As printed|4.10|-|8.05|1561|",  # the whole table, as ours has no such latency
    ):
        assert note in text
    options = publish(tmp_path, "test", measures=["wer"], systems=printed(test="4.10"))
    text = write_report(tmp_path, exp, content, *options)
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {9}


def test_published_table_of_another_corpus_follows_ours(tmp_path, exp):
    content = plan(published="paper", model="Whisper base")
    text = write_report(tmp_path, exp, content, *publish(tmp_path, "test-clean"))
    assert "|test|Linear|16.67|-|2.00|2.50 (heads 0.50)|" in text.splitlines()
    assert (
        "### Published: A paper, Table I\n\n"
        "|system|WER [%]|speedup|latency [s]|parameters [M]|\n|---|---|---|---|---|\n"
        "|As printed|4.10|-|8.05|1561|\n"
    ) in text
    assert "- Models: published Whisper large-v2; ours Whisper base." in text
    linear = {"name": "Two", "cells": {"a": "1.0", "b": "2.0"}}
    options = publish(tmp_path, "", measures=["wer"], systems={"linear": linear})
    text = write_report(tmp_path, exp, content, *options)
    assert "|system|a: WER [%]|b: WER [%]|\n|---|---|---|\n|Two|1.0|2.0|\n" in text


def test_our_model_is_the_whisper_that_the_recipe_recorded(tmp_path, exp):
    content = plan(published="paper", model="{whisper_model}, 5 heads")
    options = publish(tmp_path, "test")
    line = "- Models: published Whisper large-v2; ours "
    for recorded, expected in (
        (None, "Whisper of unknown size (no file whisper_model"),
        ("openai/whisper-base\n", "whisper-base, 5 heads."),
        ("/models/whisper-base.en/\n", "whisper-base.en, 5 heads."),
    ):
        if recorded:
            (exp / "whisper_model").write_text(recorded)
        assert f"{line}{expected}" in write_report(tmp_path, exp, content, *options)


def test_a_table_without_a_decoding(tmp_path, exp):
    content = plan(published="paper", model="{whisper_model}", command="./run.sh --part 960")
    for system in content["tables"][0]["systems"].values():
        system["exp"] = "asr_nonesuch"
    text = write_report(tmp_path, exp, content, *publish(tmp_path, "test"))
    assert not rows(text) and "|test set|" not in text
    assert "\n- Not run: test.\n- Command of what was not run: `./run.sh --part 960`.\n" in text
    assert "\n- Models: published Whisper large-v2.\n" in text
    assert "|As printed|4.10|-|8.05|1561|" in text


@cases(
    ("librispeech", "test-clean", {}, "4 of 2620 utterances"),
    ("voxpopuli", "en", {}, "4 utterances; size of the set not given"),
    ("voxpopuli", "en", {"en": 5}, "4 of 5 utterances"),
    ("voxpopuli", "en", {"en": 4}, None),
    (None, "any", {"any": 5}, "4 of 5 utterances"),
)
def test_only_whole_corpora_are_shown(corpus, label, utterances, why, tmp_path, exp):
    table = plan(corpus=corpus, test_sets={"test": label}, utterances=utterances or None)
    text = write_report(tmp_path, exp, table)
    shown = [] if why else [[label, "Vanilla", "10.00", "1.00", "1.00", "2.00"]]
    assert rows(text, label) == shown
    absent = f"Vanilla ({why}); Linear" if why else "Linear"
    # Linear lacks an utterance: never of the whole set.
    assert f"\n- Not run: {label}: {absent} (3 " in text
    assert "); Block.\n" in text and "![" not in text


def test_figures_of_a_whole_set_need_the_baseline_on_it_too(tmp_path, exp):
    table = plan(corpus="voxpopuli", test_sets={"test": "en"}, utterances={"en": 3})
    text = write_report(tmp_path, exp, table)
    assert "|en|Linear|16.67|2.50 (heads 0.50)|" in text
    assert "Vanilla (4 of 3 utterances)" in text and "![" not in text


def test_draft_model_counts(tmp_path, exp):
    (exp / "asr_draft").mkdir()
    torch.save({"weight": torch.zeros(1000, 750)}, exp / "asr_draft" / "draft.pth")
    content = plan()
    system = content["tables"][0]["systems"]["linear"]
    # Relative to the experiments' folder, not to the working directory; or absolute.
    for draft_model in ("asr_draft/draft.pth", str(exp / "asr_draft" / "draft.pth")):
        system["draft_model"] = draft_model
        text = write_report(tmp_path, exp, content)
        assert rows(text)[1][5] == "3.25 (heads 0.50, draft model 0.75)"


def fails(tmp_path, exp, content, capsys, dirs=None):
    return error_of(capsys, lambda: write_report(tmp_path, exp, content, dirs=dirs))


@cases(("asr_linear", "valid.acc_heads.ave.pth"), ("asr_draft", "draft.pth"))
def test_a_damaged_checkpoint_does_not_spoil_the_report(folder, name, tmp_path, exp, capsys):
    (exp / "asr_draft").mkdir()
    torch.save({"weight": torch.zeros(2)}, exp / "asr_draft" / "draft.pth")
    content = plan()
    content["tables"][0]["systems"]["linear"]["draft_model"] = "asr_draft/draft.pth"
    (exp / folder / name).write_bytes(b"damaged")
    dirs = [exp / "asr_linear", exp / "asr_vanilla"]
    with pytest.raises(SystemExit) as end:
        write_report(tmp_path, exp, content, dirs=dirs)
    assert end.value.code == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert f"not complete: {exp / 'asr_linear'}: {exp / folder / name}: not a checkpoint" in line
    text = (tmp_path / "out" / "REPORT.md").read_text()
    assert [row[1] for row in rows(text)] == ["Vanilla"] and line.split(": ", 2)[2][:20] in text
    assert "Linear (not complete)" in text


def test_several_decodings_of_a_row(tmp_path, exp, capsys):
    write_decoding(exp / "asr_vanilla", "baseline_asr_model_other", "test", {"a": 1.0})
    message = fails(tmp_path, exp, plan(), capsys)
    assert f"several decodings fit 'baseline': baseline_asr_model_other, {BASELINE}" in message
    content = plan()
    content["tables"][0]["systems"]["vanilla"]["decoding"] = BASELINE
    assert rows(write_report(tmp_path, exp, content))[0][2] == "10.00"


LIBRISPEECH = {"corpus": "librispeech", "test_sets": {"test": "test-clean"}}
LIBRISPEECH |= {"utterances": {"test-clean": 4}}
MISSING = dict(name="V", exp="asr_vanilla", decoding="baseline", draft_model="asr_draft/x.pth")


@cases(
    ({"published": "nonesuch", "model": "Whisper base"}, "'nonesuch' is not known"),
    ({"corpus": "libri"}, "corpus: 'libri' is not known"),
    (LIBRISPEECH, "the corpus has 2620"),
    ({"systems": {"vanilla": MISSING}, "figure": None}, "asr_draft/x.pth: no such checkpoint"),
    ids=["published table", "corpus", "size of the corpus", "draft model"],
)
def test_plans_of_other_experiments_are_refused(changes, expected, tmp_path, exp, capsys):
    assert expected in fails(tmp_path, exp, plan(**changes), capsys)


def test_only_parent_folders_distinguish_experiments_of_one_name(tmp_path, exp, capsys):
    shutil.copytree(exp, tmp_path / "cs")
    twins = [folder / "asr_linear" for folder in (exp, tmp_path / "cs")]
    assert "asr_linear: matches" in fails(tmp_path, exp, plan(), capsys, dirs=twins)
    folder = tmp_path / "cs" / "asr_linear" / TYPICAL / "test"
    shutil.rmtree(folder / "score_wer")
    write_score(folder, "wer", [(10, 0, 0, 0)] * 3)
    content = plan(test_sets={"test": "cs"})
    for system in content["tables"][0]["systems"].values():
        system["exp"] = "{label}/" + system["exp"]
    dirs = [path for parent in (exp, tmp_path / "cs") for path in parent.iterdir()]
    assert "|cs|Linear|0.00|-|2.00|" in write_report(tmp_path, exp, content, dirs=dirs)
